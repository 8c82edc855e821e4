"""The command-line options of `rag-r1 serve`, and those that `rag-r1 chat` shares with it.

Both have `ChatAgentArguments`, which select the agent. `to_eval_arguments` converts them to the arguments of
`rag-r1 eval`, from which the agent is made; `with_demo_limits` puts them into those of the demo.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.command_line import Above0, Filled, From0Count, HostName, Port, Positive, argument
from rag_r1.options.types import Constraint
from rag_r1.rollouts.agent_arguments import (
    LIMITS,
    MODEL_SERVER,
    AgentSelection,
    EpisodeTokens,
    ServedModel,
    shared_arguments,
)
from rag_r1.runs.start_checks import CHECK_ONLY

#: Fields that have no effect with --demo, because the demo sets them.
_UNUSED_BY_DEMO = {
    *("model", "documents", "base_url", "max_response_tokens", "max_prompt_tokens", "max_context_tokens"),
    *(name for name in AgentSelection.model_fields if name != "overrides"),
}
#: The heading of the server's options in `--help-all`.
SERVER = "this server"
#: Retries of a request: fewer than in an evaluation, since a person is waiting.
_RETRIES = 2


class _ModelArguments(ServedModel):
    """The model and the passages to search."""

    model: Filled | None = argument(
        "folder of a Hugging Face model or of a checkpoint of veRL, which is served here with vLLM; with "
        "--base-url, the model's name at that address",
        "MODEL",
        default=None,
    )
    demo: bool = argument(
        "serve the demo's policy in its invented world, with everything that it needs: the policy of the "
        "last `rag-r1 demo`, or else the embedded one, which has not learned to search yet",
        default=False,
    )
    documents: Path | None = argument(
        "folder to search: its documents are cut into passages and indexed with BM25 at start",
        "DIR",
        default=None,
    )
    skip_bad_files: bool = argument(
        "leave out files of --documents that cannot be read; otherwise they are named and nothing starts",
        default=False,
        rare=SERVER,
    )


class ChatAgentArguments(AgentSelection, EpisodeTokens, _ModelArguments):
    """The agent that answers, its limits, and how many chats it plays."""

    timeout_s: Above0 = argument("seconds for one turn of the model", default=300.0, rare=MODEL_SERVER)
    history: From0Count | None = argument(
        "most earlier questions and answers that stand in the prompt of a follow-up question (default: 4; "
        "--demo: 0, since its policy was trained on single questions only)",
        "N",
        default=None,
        rare=LIMITS,
    )
    out: Path = argument(
        "folder for logs, and for the index of --documents", "DIR", default=Path("outputs/serve")
    )
    name: Filled = argument("name of the model in the API", default="rag-r1", rare=SERVER)
    in_flight: Positive = argument("most chats answered at a time", "N", default=32, old="concurrency")
    queue: From0Count = argument(
        "most chats that wait; a further one is refused with Retry-After", "N", default=64, rare=SERVER
    )

    @property
    def max_history(self) -> int:
        """The most earlier questions that the policy is shown."""
        if self.history is not None:
            return self.history
        return 0 if self.demo else 4


class ServeArguments(ChatAgentArguments):
    """`rag-r1 serve`: the agent, and the address to listen on."""

    host: Filled = argument(
        "address to listen on; 127.0.0.1: this machine only; 0.0.0.0: the whole network", default="127.0.0.1"
    )
    port: Port = argument("port to listen on; 0: a free one", default=8080)
    allowed_host: list[HostName] = argument(
        "further name under which browsers reach this server, such as that of a proxy, beside addresses, "
        "localhost and the name of the machine; may be repeated",
        "NAME",
        default=[],
        rare=SERVER,
    )
    drain_s: Annotated[int, Field(ge=1), Constraint("a number of seconds of at least 1")] = argument(
        "seconds for chats to finish after SIGTERM or Ctrl-C", default=120, rare=SERVER
    )
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _has_model(self) -> ServeArguments:
        """Raise ValueError, which names the flags, unless the arguments select one agent."""
        require_one_agent(self)
        return self


def require_one_agent(args: ChatAgentArguments) -> None:
    """Raise ArgumentsError, which names the flags, unless the arguments select exactly one agent."""
    if args.demo:
        args.refuse_unused(_UNUSED_BY_DEMO, "--demo brings its own", even_defaults=True)
    elif args.model is None:
        raise ArgumentsError("give --model (a folder, or with --base-url the name of a model), or try --demo")
    if args.documents is not None:
        args.refuse_unused(("retriever_url",), "--documents starts a retrieval server", even_defaults=True)
    else:
        args.refuse_unused(("skip_bad_files",), "there is no --documents")


def to_eval_arguments(args: ChatAgentArguments) -> EvalArguments:
    """Return the arguments with which `rag-r1 eval` would play questions as this server does."""
    names = (*EpisodeTokens.model_fields, *ServedModel.model_fields, "model", "out", "in_flight", "timeout_s")
    values = shared_arguments(args) | {name: getattr(args, name) for name in names}
    return args.converted(EvalArguments, {**values, "questions": [], "retries": _RETRIES})


def with_demo_limits(
    args: ChatAgentArguments, evaluation: EvalArguments, vllm: tuple[str, ...]
) -> EvalArguments:
    """Return `evaluation`, the demo's arguments of `rag-r1 eval` (rag_r1/demo/eval_arguments.py), with the
    user's limits and overrides in `args`. `vllm` are the flags of the demo's vLLM server, which the user's
    flags follow."""
    return evaluation.changed(
        overrides=[*evaluation.overrides, *args.overrides],
        vllm_options=shlex.join([*vllm, *shlex.split(args.vllm_options)]),
        in_flight=args.in_flight,
        retries=_RETRIES,
        timeout_s=args.timeout_s,
    )
