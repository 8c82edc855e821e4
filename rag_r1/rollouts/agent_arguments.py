"""Command-line options that select the agent, shared by all commands that run one.

A command's arguments inherit from these classes and add the flags of its model's server. With several base
classes, the flags of the last one come first in the help. Commands that play questions as `rag-r1 eval` does
(`serve`, `chat`, `mcp`) convert their arguments to those of `rag-r1 eval` with `shared_arguments`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from rag_r1.options.arguments.overrides import CheckedOverrides
from rag_r1.options.command_line import Arguments, Positive, Variable, argument
from rag_r1.options.server_address import Address
from rag_r1.protocols import protocol_names

#: Headings of `--help-all`.
MODEL_SERVER, LIMITS, SAMPLING = "the model's server", "limits of an episode", "sampling"
SCORING, COST, RUN, JUDGE = "what is right, and the report", "cost", "the run", "a judge"


class AgentSelection(Arguments):
    """The agent: its search, its protocol, its prompt, and the API of its model's server."""

    retriever_url: Address = argument(
        "address of the retrieval server", "URL", default="http://127.0.0.1:8000"
    )
    protocol: str = argument(
        f"protocol that the model was trained with ({', '.join(protocol_names())}), or your own .yaml",
        "NAME",
        default="rag_r1_mq",
    )
    prompt: str | None = argument("your own prompt: a text file with {question} in it", "FILE", default=None)
    engine: Literal["chat", "completions"] = argument(
        "which API of the model's server is used: completions with token ids (vLLM), as in training, or chat",
        default="completions",
        rare=MODEL_SERVER,
    )
    tokenizer: str | None = argument(
        "folder or Hub name of the model's tokenizer (default: the model's own)",
        "DIR",
        default=None,
        rare=MODEL_SERVER,
    )
    api_key_env: Variable = argument(
        "environment variable with the key of the model's server",
        "NAME",
        default="OPENAI_API_KEY",
        rare=MODEL_SERVER,
    )
    overrides: CheckedOverrides = argument(
        "keys of the block rag_r1, for example rag_r1.agent.max_turns=6", "key=value", default=[]
    )


class EpisodeTokens(Arguments):
    """The limits of an episode in tokens."""

    max_response_tokens: Positive = argument(
        "tokens of an episode after its prompt", default=8192, rare=LIMITS
    )
    max_prompt_tokens: Positive = argument("tokens of a prompt", default=4096, rare=LIMITS)
    max_context_tokens: Positive | None = argument(
        "tokens that the model's context holds (default: the sum of both)", "N", default=None, rare=LIMITS
    )


class ServedModel(Arguments):
    """The server of the model, or the options of the vLLM server that is started without one."""

    base_url: Address | None = argument(
        "a server with the model, up to and with /v1 (default: vLLM is started here)", "URL", default=None
    )
    vllm_options: str = argument(
        'further flags of the vLLM that is started here, "--tensor-parallel-size 2"',
        "FLAGS",
        default="",
        rare=MODEL_SERVER,
    )

    @model_validator(mode="after")
    def _flags_fit_server(self) -> ServedModel:
        if self.base_url is not None:
            self.refuse_unused(["vllm_options"], "--base-url names a server that runs already")
        else:  # commands that inherit from this class have the key of that server, too
            self.refuse_unused(["api_key_env"], "without --base-url, the model is served here without a key")
        return self


def shared_arguments(args: AgentSelection) -> dict[str, Any]:
    """Return the arguments of AgentSelection by name, to make the arguments of another command."""
    return {name: getattr(args, name) for name in AgentSelection.model_fields}
