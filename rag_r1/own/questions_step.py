"""The step of `rag-r1 own` that makes the questions: the teacher writes them, or the user's own are copied.

In both cases the step writes train.parquet and test.parquet with the prompt of the plan. Questions of the
teacher are split by document (rag_r1/questions); of the user's own, no question may be in both files. If a
cost limit or a server stops the teacher or the reader, the step fails with an error, and is resumed when
`rag-r1 own` is run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.qa_parquet import write_split_files
from rag_r1.data.row_schema import metadata_types
from rag_r1.data.rows import QuestionRow
from rag_r1.io.errors import DataError
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.own.artifacts import OwnArtifacts, own_step
from rag_r1.protocols import Protocol
from rag_r1.questions.run import QuestionsResult, write_questions
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.requests import read_questions
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import Step


def questions_step(artifacts: OwnArtifacts) -> Step:
    """Make the step of the questions."""
    plan = artifacts.plan
    needs = ("index",) if plan.documents.corpus else ("documents", "index")
    results = ("train.parquet", "test.parquet") if plan.trains else ("test.parquet",)
    if not plan.writes_questions:
        return _own_questions(artifacts, needs, results)
    spec = questions_spec(artifacts)
    settings = {**spec.settings, "prompt": plan.protocol.user_prompt}
    del settings["command"]

    def work(folder: Path) -> dict[str, Any]:
        with artifacts.retriever(folder) as url:
            result = asyncio.run(write_questions(replace(spec, retriever_url=url)))
        return _facts_of(result, folder, plan.trains)

    return own_step("questions", settings, work, results, needs)


def questions_spec(artifacts: OwnArtifacts) -> QuestionsSpec:
    """Return the settings with which questions are written.

    The address of the retrieval server is missing, since the server has not been started yet.
    """
    plan = artifacts.plan
    return QuestionsSpec(
        corpus=tuple(artifacts.corpus),
        out=artifacts.out / "questions",
        teacher=plan.teacher_spec,
        reader=plan.reader_spec,
        kinds=plan.questions.kinds,
        per_kind=plan.questions.per_kind,
        seed=plan.run.seed,
        test_share=plan.questions.test_share,
        protocol=plan.policy.protocol,
        prompt=plan.policy.prompt,
        limits=plan.limits,
    )


def _facts_of(result: QuestionsResult, folder: Path, trains: bool) -> dict[str, Any]:
    """Return the facts of the step. Raises RunError if a question is still open, or if a split that is needed
    (train only if something is trained) has none."""
    card = result.card
    if result.stopped or card["open"]:
        # Any of the reasons would do; the least one is the same whatever the order of the answers.
        reason = result.stopped or min(outcome.detail for outcome in result.outcomes if outcome.is_open)
        raise RunError(f"the questions are not complete ({reason}): the same command, run again, goes on")
    for split in ("train", "test") if trains else ("test",):
        if not card["rows"][split]:
            raise RunError(
                f"no question of {split} was kept: see why in {folder / 'refused.jsonl'}, then remove "
                f"{folder} and change the teacher, the reader or questions.per_kind"
            )
    cost = sum(usage["cost"] for usage in card["usage"].values())
    names = ("seeds", "kept", "rows", "refused", "usage")
    return {**{name: card[name] for name in names}, "cost": cost}


def _own_questions(artifacts: OwnArtifacts, needs: Sequence[str], results: Sequence[str]) -> Step:
    """Make the step that copies the user's own questions."""
    plan = artifacts.plan
    files = {"train": plan.questions.train if plan.trains else (), "test": plan.questions.test}
    hashes = {split: [sha256_of_file(Path(path))[:16] for path in paths] for split, paths in files.items()}
    settings = {**hashes, "protocol": plan.policy.protocol, "prompt": plan.protocol.user_prompt}

    def work(folder: Path) -> dict[str, Any]:
        rows = {split: _own_rows(artifacts, split, paths) for split, paths in files.items() if paths}
        refuse_shared(rows)
        write_split_files(folder, rows.items())
        return {"rows": {split: len(questions) for split, questions in rows.items()}, "cost": 0.0}

    return own_step("questions", settings, work, results, needs)


def read_own_questions(paths: Sequence[str], protocol: Protocol) -> list[QuestionRow]:
    """Read the user's questions of one split. Raises DataError if they cannot be used, or if their metadata
    cannot be in one file."""
    rows = read_questions(paths, protocol, skip_bad_rows=None).rows
    metadata_types([row.metadata for row in rows])
    return rows


def _own_rows(artifacts: OwnArtifacts, split: str, paths: Sequence[str]) -> list[QuestionRow]:
    """Read the user's questions as rows with the plan's prompt. Raises RunError, which names the key of the
    plan, for a file or a row that cannot be used."""
    protocol = artifacts.plan.protocol
    try:
        questions = read_own_questions(paths, protocol)
    except DataError as error:
        raise RunError(f"questions.{split}: {error}") from error
    return [
        replace(
            row,
            prompt=tuple(protocol.messages(row.question)),
            protocol=protocol.name,
            split=split,
            index=index,
        )
        for index, row in enumerate(questions)
    ]


def refuse_shared(rows: dict[str, list[QuestionRow]]) -> None:
    """Raise RunError if a held-out question is also in the training set. `rows` has the rows of each split;
    each may be missing."""
    training_keys = {question_key(row.question) for row in rows.get("train", ())}
    shared = [row for row in rows.get("test", ()) if question_key(row.question) in training_keys]
    if shared:
        raise RunError(
            f"questions.test: {len(shared)} of its questions are also in questions.train, such as "
            f"{shared[0].question!r}: remove them from one of the two"
        )
