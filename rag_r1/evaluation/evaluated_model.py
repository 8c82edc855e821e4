"""The model that is evaluated: a folder that is served here with vLLM, or a name at the user's own server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.evaluation.checkpoints import model_folder
from rag_r1.evaluation.run_folder import RunError
from rag_r1.evaluation.serving import vllm_server

if TYPE_CHECKING:
    from rag_r1.evaluation.evaluate import EvalArguments

#: In the run's folder: what the server prints, and a model that was merged from a checkpoint's shards.
LOG, MODEL = "vllm.log", "model"


def resolved(given: EvalArguments) -> EvalArguments:
    """The arguments with the model's folder, its tokenizer and the length of its context. A chat endpoint
    needs no tokenizer. Raises RunError if the model is no folder and no server is named."""
    if given.base_url is not None:
        known = given.engine == "chat" or given.tokenizer is not None
        return given if known else given.model_copy(update={"tokenizer": given.model})
    folder = model_folder(Path(given.model), given.out / MODEL)
    longest = _longest_context(folder)
    context = given.max_context_tokens or given.max_prompt_tokens + given.max_response_tokens
    context = context if longest is None else min(context, longest)
    more: dict[str, Any] = {"model": str(folder), "max_context_tokens": context}
    if given.tokenizer is None and given.engine == "completions":
        more["tokenizer"] = str(folder)
    return given.model_copy(update=more)


@contextmanager
def served(given: EvalArguments) -> Iterator[EvalArguments]:
    """The arguments with a server's address, which is started for the block if none was given. `given`: as
    `resolved` returns it. Raises RunError if the server does not start."""
    if given.base_url is not None:
        yield given
        return
    try:
        more = shlex.split(given.vllm_options)
    except ValueError as error:
        raise RunError(f"--vllm-options {given.vllm_options!r}: {error}") from error
    options = ["--max-model-len", str(given.max_context_tokens), *more]
    with vllm_server(Path(given.model), given.out / LOG, name=given.model, options=options) as url:
        yield given.model_copy(update={"base_url": url})


def _longest_context(folder: Path) -> int | None:
    """Tokens of the model's longest context, by its configuration."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        longest = config.get("max_position_embeddings")
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / 'config.json'} cannot be read: {error}") from error
    return longest if isinstance(longest, int) and longest > 0 else None
