"""The target of an evaluation: a model folder served here with vLLM, or a model on the user's server."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.inference.checkpoints import model_folder
from rag_r1.inference.client import base_address
from rag_r1.inference.hub import local_model
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.io.bounded_json import read_json_file
from rag_r1.rollouts.checks import server_fault
from rag_r1.rollouts.provenance_facts import TIMEOUT_S, get_json
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import one_line_text

Given = TypeVar("Given", bound=PolicyArguments)

#: In the run's folder: what the server prints, and a model that was merged from a checkpoint's shards.
LOG, MODEL = "vllm.log", "model"


def resolve_model(given: Given) -> Given:
    """The arguments with the model's folder, its tokenizer and the length of its context. A chat endpoint
    needs no tokenizer. Raises RunError if the model is no folder and no server is named, or if the server
    does not have it."""
    if given.base_url is not None:
        if given.engine == "chat":
            _told(f"{base_address(given.base_url)}/models", given.api_key_env)
            return given
        longest = _context_of_server(given.base_url, given.model, given.api_key_env)
        return _within(given, longest, tokenizer=given.tokenizer or given.model)
    folder = model_folder(local_model(given.model), given.out / MODEL)
    tokenizer = given.tokenizer or (str(folder) if given.engine == "completions" else None)
    return _within(given, _context_of_model(folder), model=str(folder), tokenizer=tokenizer)


@contextmanager
def serve_model(given: Given) -> Iterator[Given]:
    """The arguments with a server's address, which is started for the block if none was given. `given`: as
    `resolve_model` returns it. Raises RunError if the server does not start."""
    if given.base_url is not None:
        yield given
        return
    try:
        more = shlex.split(given.vllm_options)
    except ValueError as error:
        raise RunError(f"--vllm-options {given.vllm_options!r}: {error}") from error
    options = ["--max-model-len", str(given.max_context_tokens), *more]
    keys = [str(value) for field, value in given if field.endswith("key_env")]
    server = vllm_server(Path(given.model), given.out / LOG, name=given.model, options=options, without=keys)
    with server as url:
        yield given.model_copy(update={"base_url": url})


def _within(given: Given, longest: int | None, **more: Any) -> Given:
    """The arguments with what fits into a context of `longest` tokens, so that no request is too long."""
    context = given.max_context_tokens or given.max_prompt_tokens + given.max_response_tokens
    context = context if longest is None else min(context, longest)
    prompt = max(1, min(given.max_prompt_tokens, context - 1))
    return given.model_copy(update={"max_context_tokens": context, "max_prompt_tokens": prompt, **more})


def _context_of_server(url: str, model: str, key_variable: str) -> int | None:
    """Tokens of the model's context, as vLLM names it in its list of models; None if there is no such list.
    Raises RunError if the list lacks the model."""
    told = _told(f"{base_address(url)}/models", key_variable)
    try:
        models = {str(one["id"]): one.get("max_model_len") for one in told["data"]}
    except (TypeError, KeyError, AttributeError):
        return None
    if models and model not in models:
        names = ", ".join(one_line_text(name) for name in list(models)[:5])
        raise RunError(f"{base_address(url)} has no model {model!r}, but {names}: correct --model")
    longest = models.get(model)
    return longest if isinstance(longest, int) and longest > 1 else None


def vllm_version(url: str, key_variable: str) -> str | None:
    """The version of the vLLM at this address; None for another server."""
    told = _told(f"{base_address(url).removesuffix('/v1')}/version", key_variable)
    version = told.get("version") if isinstance(told, dict) else None
    return one_line_text(version) if isinstance(version, str) else None


def _told(address: str, key_variable: str) -> Any:
    """What a server answers to a GET; None if it is no JSON, or an error. Raises RunError if there is no
    server."""
    key = os.environ.get(key_variable, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with bounded_http_client(TIMEOUT_S, headers) as client:
            status, told = get_json(client, address)
    except httpx.ConnectError as error:
        start = "vllm serve MODEL --port {port}"
        where = address.removesuffix("/models")
        raise RunError(server_fault("model server", where, str(error), start, "--base-url")) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
        return None
    return told if status == 200 else None


def _context_of_model(folder: Path) -> int | None:
    """The same by the model's configuration."""
    try:
        config = read_json_file(folder / "config.json")
        longest = config.get("max_position_embeddings")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise RunError(f"{folder / 'config.json'} cannot be read: {error}") from error
    return longest if isinstance(longest, int) and longest > 1 else None
