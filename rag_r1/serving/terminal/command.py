"""`rag-r1 chat`: a chat in the terminal, with a running server or one that the command starts.

    rag-r1 chat --demo
    rag-r1 chat --url http://127.0.0.1:8080

Without --url, the command runs the server of `rag-r1 serve` in a thread (local_server.py). The terminal
always is a client of the server's API (chat.py).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import model_validator

from rag_r1.http_server.listening import take_token_of
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.serving.arguments import ChatAgentArguments, refuse_unused, require_one_agent
from rag_r1.serving.command import TOKEN_VARIABLE, check_extras, set_up_logs
from rag_r1.serving.terminal.chat import TerminalChat
from rag_r1.serving.terminal.client import ChatError, check_server

_DESCRIPTION = """\
Chat with a search agent in the terminal. Each search is shown as it happens, with the passages that it found;
those that contain the words of the answer are named at the end. Ctrl-C stops an answer; /new begins a new
conversation; Ctrl-D, or Ctrl-C at the prompt, ends the chat.

examples:
  rag-r1 chat --demo
  rag-r1 chat --url http://127.0.0.1:8080
  rag-r1 chat --demo --ask "Where was Mara Torval born?"
"""


class ChatArguments(ChatAgentArguments):
    """`rag-r1 chat`: the agent, or the address of a server that runs already, and the questions."""

    out: Path = argument(
        "folder for logs, and for the index of --documents", "DIR", default=Path("outputs/chat")
    )
    url: Address | None = argument(
        "address of a running `rag-r1 serve`; its token is taken from CHAT_TOKEN", "URL", default=None
    )
    ask: list[str] = argument(
        "question to ask instead of typed ones; may be repeated, as one conversation",
        "TEXT",
        default=[],
    )
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _has_model(self) -> ChatArguments:
        """Raise ValueError, which names the flags, unless the arguments select a server or one agent."""
        if not all(question.strip() for question in self.ask):
            raise ValueError("--ask is empty: give a question")
        if self.url is None and self.model is None and not self.demo:
            raise ValueError("give --url (of a running `rag-r1 serve`) or --model, or try --demo")
        if self.url is None:
            require_one_agent(self)
        else:
            refuse_unused(self, ChatAgentArguments.model_fields, "--url names a server with its own agent")
        return self


@command_main(RunError, ChatError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 at the end of the chat, or 1 with a message if it could not begin or if a
    question of --ask got no answer."""
    args = read_arguments(
        ChatArguments,
        arguments,
        prog="rag-r1 chat",
        description=_DESCRIPTION,
        check=lambda args: _check_start(args, take_token_of(TOKEN_VARIABLE)),
    )
    set_up_logs(logging.WARNING)
    token = take_token_of(TOKEN_VARIABLE)
    _check_start(args, token)
    if args.check_only:
        print("all checks passed: the chat would begin")
        return 0
    if args.url is not None:
        return TerminalChat(args.url.rstrip("/"), token).chat(args.ask)
    # Imported here, because it needs extras, which neither `--help` nor `--url` does.
    from rag_r1.serving.terminal.local_server import local_server

    with local_server(args) as running:
        return TerminalChat(running.url, None).chat(args.ask)


def _check_start(args: ChatArguments, token: str | None) -> None:
    """Check the arguments or the server. Raises StartError, RunError or ChatError with all problems."""
    if args.url is not None:
        return check_server(args.url.rstrip("/"), token)
    from rag_r1.serving.launch import check_launch

    check_launch(args, [partial(check_extras, "rag-r1 chat", args)])


if __name__ == "__main__":
    sys.exit(main())
