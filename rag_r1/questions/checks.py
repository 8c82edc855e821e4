"""Checks the files and servers of `rag-r1 questions` before the run, and reports all problems at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.near_duplicates import require_library
from rag_r1.protocols import load_with_prompt
from rag_r1.questions.passages.documents import PassagePool
from rag_r1.questions.run import read_corpus, run_settings
from rag_r1.questions.search import retriever_of, try_search
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.server_check import ModelServer, check_replies
from rag_r1.runs.folder import check_settings
from rag_r1.runs.start_checks import StartChecks, begin_checks, try_servers


def check_start(spec: QuestionsSpec, *, asks_models: bool, opens_run: bool = False) -> PassagePool | None:
    """Check the corpus, the prompt and all servers.

    The models are asked only if `asks_models` is set and no proxy is used, which may know hosts that this
    machine does not. With `opens_run`, the settings must be those of the run in `spec.out`, if there is one.
    Returns the passages of the corpus; None if `spec.corpus` is empty. Raises StartError with all problems.
    """
    pool = None
    with StartChecks() as checks:
        checks.run_on_all(lambda paths: check_first_rows(Corpus(paths)), spec.corpus)
        if spec.corpus and not checks.problems:  # else one fault of a file would be reported twice
            pool = checks.run(read_corpus, spec)
        checks.run(load_with_prompt, spec.protocol, None)
        if spec.prompt is not None:  # a wrong protocol must not hide a fault of the prompt
            checks.run(load_with_prompt, "rag_r1_mq", spec.prompt)
        if spec.verification.similarity:
            checks.run(require_library)
        attempts: list[Callable[[], object]] = [
            lambda: asyncio.run(try_servers(try_search(retriever_of(spec), pool)))
        ]
        reader_flag = "--base-url" if spec.reader and spec.reader.url == spec.teacher.url else "--reader-url"
        flags = ("--base-url", "--teacher-model"), (reader_flag, "--reader-model")
        for model, (flag, model_flag) in zip((spec.teacher, spec.reader), flags, strict=True):
            if model is not None and asks_models and not spec.limits.trust_env:
                server = ModelServer(
                    model.url, model.key_variable, model.model, flag=flag, model_flag=model_flag
                )
                attempts.append(partial(check_replies, server))
        for attempt in begin_checks(*attempts):
            checks.run(attempt)
        if opens_run and pool is not None and not checks.problems:
            checks.run(_check_all_settings, spec, pool)
        elif opens_run:
            checks.run(check_settings, spec.out, spec.settings, is_complete=False)
    return pool


def _check_all_settings(spec: QuestionsSpec, pool: PassagePool) -> None:
    """Raise RunError if a setting of the run in `spec.out` has changed, including its corpus and index."""
    check_settings(spec.out, run_settings(spec, pool, load_with_prompt(spec.protocol, spec.prompt)))
