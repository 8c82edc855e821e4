"""The target of an evaluation: a model folder that is served here with vLLM, or a model on the user's server.

`resolve_model` completes a command's arguments with the model's folder, tokenizer and context length before
any server is started; it downloads or merges the model if necessary. `serve_model` then starts vLLM, unless
--base-url names a server.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.inference.model_folders import is_hub_name, local_model, model_folder
from rag_r1.inference.model_folders.model_config import check_causal_model, read_model_config
from rag_r1.inference.tokenizer import check_vocabulary
from rag_r1.inference.vllm_server import check_options, vllm_server
from rag_r1.io.errors import reason_of
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.rollouts.server_check import ModelServer, check_endpoint, check_replies
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks

#: The type of a command's arguments. Functions return the type that they get.
Args = TypeVar("Args", bound=PolicyArguments)

#: The log of the server, and the model that was merged from a checkpoint's shards, in the run's folder.
LOG, MODEL = "vllm.log", "model"


def resolve_model(args: Args, *, checks_options: bool = True) -> Args:
    """Return the arguments with the model's folder, its tokenizer and limits that fit its context. Arguments
    for a chat endpoint are returned unchanged.

    Without --base-url, a model on the Hub is downloaded, and the shards of a checkpoint are merged into the
    folder of the run. Both are also done with --check-only, since the checks read the files of the model.

    With --base-url, raises RunError if no model server answers there, or if it does not have the model. With
    --trust-env, which means that the server may be behind a proxy, it is not asked at all.

    Without --base-url, raises RunError if the model cannot be downloaded or merged, is incomplete, or has no
    readable config.json, and, if `checks_options`, for flags in --vllm-options that vLLM does not take.
    Raises StartError if both are wrong, and OSError if the disk is full.
    """
    if args.base_url is not None:
        own_tokenizer = args.tokenizer or args.model
        if args.trust_env:  # behind a proxy, this machine may not reach the server itself
            return args if args.engine == "chat" else _with_limits(args, None, tokenizer=own_tokenizer)
        if args.engine == "chat":
            check_endpoint(_server_of(args))
            return args
        model_tokens = _context_of_server(_server_of(args), args.model)
        return _with_limits(args, model_tokens, tokenizer=own_tokenizer)
    with StartChecks() as checks:
        if checks_options:
            checks.run(check_vllm_options, args)
        folder = model_folder(local_model(args.model), args.out / MODEL)
        model_tokens = _context_of_model(folder)
        checks.run(check_causal_model, folder)
    tokenizer = args.tokenizer or (str(folder) if args.engine == "completions" else None)
    return _with_limits(args, model_tokens, model=str(folder), tokenizer=tokenizer)


def check_served_model(args: PolicyArguments, model_check: Callable[[], object]) -> None:
    """Check the model at --base-url more closely than `resolve_model`, which only reads the server's list of
    models: request a token from it, and load its tokenizer if the model's name is a local folder. Does
    nothing without --base-url.

    `model_check` calls `resolve_model`. If it fails, no token is requested. Raises StartError with all
    problems.
    """
    if args.base_url is None:
        return
    with StartChecks() as checks:
        if checks.run(model_check) is not None and not args.trust_env:
            checks.run(check_replies, _server_of(args), args.engine)
        if args.engine == "completions" and args.tokenizer is None and not is_hub_name(args.model):
            checks.run(TokenUnit.of, args.model, is_model=True)


@contextmanager
def serve_model(args: Args) -> Iterator[Args]:
    """Yield the arguments with the address of the model's server. Without --base-url, vLLM is started for
    the duration of the block. `args` must come from `resolve_model`. Raises RunError if vLLM does not
    start."""
    if args.base_url is not None:
        yield args
        return
    options = ["--max-model-len", str(args.max_context_tokens), *_vllm_options(args)]
    key_variables = [args.api_key_env, args.judge_api_key_env]  # vLLM needs neither
    with vllm_server(
        Path(args.model), args.out / LOG, name=args.model, options=options, hidden_variables=key_variables
    ) as url:
        yield args.model_copy(update={"base_url": url})


def check_tokens(args: PolicyArguments, tokens: TokenUnit) -> None:
    """Raise RunError if a model that is served here lacks embeddings for tokens of its tokenizer."""
    if args.base_url is None and tokens.tokenizer is not None:
        check_vocabulary(tokens.tokenizer, Path(args.model))


def check_vllm_options(args: PolicyArguments) -> None:
    """Raise RunError for unbalanced quotation marks in --vllm-options, and for flags and values that vLLM
    does not take. Does nothing for a model at --base-url."""
    if args.base_url is not None:
        return
    options = _vllm_options(args)
    try:
        check_options(tuple(options))
    except ValueError as error:
        raise RunError(f"--vllm-options {args.vllm_options!r}: {error}") from error


def _vllm_options(args: PolicyArguments) -> list[str]:
    """Return the arguments in --vllm-options. Raises RunError for unbalanced quotation marks."""
    try:
        return shlex.split(args.vllm_options)
    except ValueError as error:
        message = f"--vllm-options {args.vllm_options!r}: {error}: correct the quotation marks"
        raise RunError(message) from error


def _with_limits(args: Args, model_tokens: int | None, **updates: Any) -> Args:
    """Return the arguments with the updates, and with limits that keep every request within the model's
    context. `model_tokens` is the length of that context, None if it is unknown."""
    context_tokens = args.max_context_tokens or args.max_prompt_tokens + args.max_response_tokens
    if model_tokens is not None:
        context_tokens = min(context_tokens, model_tokens)
    prompt_tokens = max(1, min(args.max_prompt_tokens, context_tokens - 1))
    limits = {"max_context_tokens": context_tokens, "max_prompt_tokens": prompt_tokens}
    return args.model_copy(update={**limits, **updates})


def _server_of(args: PolicyArguments) -> ModelServer:
    """Return the model's server at --base-url, with the flags that messages name."""
    flags = {"flag": args.url_flag, "model_flag": args.model_flag}
    return ModelServer(str(args.base_url), args.api_key_env, args.model, **flags)


def _context_of_server(server: ModelServer, model: str) -> int | None:
    """Return the length of the model's context in tokens, which vLLM's list of models contains; None without
    such a list. Raises RunError if the list lacks the model."""
    entry = check_endpoint(server).get(model)
    return _context_tokens(entry.get("max_model_len")) if isinstance(entry, Mapping) else None


def _context_of_model(folder: Path) -> int | None:
    """Return the length of the context in tokens from a model folder's config.json; None if that has none.
    Raises RunError if the file cannot be read."""
    try:
        return _context_tokens(read_model_config(folder).get("max_position_embeddings"))
    except (OSError, ValueError) as error:
        remedy = "copy or download the model again, or give another folder"
        raise RunError(f"{folder / 'config.json'} cannot be read: {reason_of(error)}: {remedy}") from error


def _context_tokens(value: Any) -> int | None:
    """Return the value if it is a valid length of a context, with room for a prompt; None otherwise."""
    return value if isinstance(value, int) and value > 1 else None
