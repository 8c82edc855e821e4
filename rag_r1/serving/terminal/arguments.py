"""The command-line options of `rag-r1 chat`: the agent, or the address of a server that runs."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from rag_r1.options.command_line import argument
from rag_r1.options.server_address import Address
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.serving.arguments import ChatAgentArguments, require_one_agent


class ChatArguments(ChatAgentArguments):
    """`rag-r1 chat`: the agent, or the address of a server that runs already, and the questions."""

    out: Path = argument(
        "folder for logs, and for the index of --documents", "DIR", default=Path("outputs/chat")
    )
    url: Address | None = argument(
        "address of a running `rag-r1 serve`; its token is taken from CHAT_TOKEN", "URL", default=None
    )
    ask: list[str] = argument(
        "question to ask instead of typed ones; may be repeated, as one conversation", "TEXT", default=[]
    )
    check_only: bool = argument(CHECK_ONLY, default=False)

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _questions_are_valid(self) -> ChatArguments:
        if not all(question.strip() for question in self.ask):
            raise ValueError("--ask is empty: give a question")
        return self

    @model_validator(mode="after")
    def _has_server_or_agent(self) -> ChatArguments:
        """Raise ValueError, which names the flags, unless the arguments select a server or one agent."""
        if self.url is None and self.model is None and not self.demo:
            raise ValueError("give --url (of a running `rag-r1 serve`) or --model, or try --demo")
        if self.url is None:
            require_one_agent(self)
        else:
            reason = "--url names a server with its own agent"
            self.refuse_unused(ChatAgentArguments.model_fields, reason, even_defaults=True)
        return self
