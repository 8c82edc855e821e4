"""`rag-r1 chat`: a chat in the terminal, with a running server or one that the command starts.

    rag-r1 chat --demo
    rag-r1 chat --url http://127.0.0.1:8080

Without --url, the command runs the server of `rag-r1 serve` in a thread (local_server.py). The terminal is
always a client of the server's API (chat.py).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial

from rag_r1.http_server.access_token import read_token, take_token
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks
from rag_r1.serving.command import TOKEN_VARIABLE, check_extras, set_up_logs
from rag_r1.serving.terminal.arguments import ChatArguments
from rag_r1.serving.terminal.chat import TerminalChat
from rag_r1.serving.terminal.client import check_server

_DESCRIPTION = """\
Chat with a search agent in the terminal. Each search is shown as it happens, with the passages that it found;
those that contain the words of the answer are named at the end. Ctrl-C stops an answer; /new begins a new
conversation; Ctrl-D, or Ctrl-C at the prompt, ends the chat.

examples:
  rag-r1 chat --demo
  rag-r1 chat --url http://127.0.0.1:8080
  rag-r1 chat --demo --ask "Where was Mara Torval born?"
"""


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 at the end of the chat, or 1 with a message if it could not begin or if a
    question of --ask got no answer."""
    args = read_arguments(
        ChatArguments, arguments, prog="rag-r1 chat", description=_DESCRIPTION, check=_check_start
    )
    set_up_logs(logging.WARNING)
    _check_start(args)
    token = take_token(TOKEN_VARIABLE)
    if args.check_only:
        print("all checks passed: the chat would begin")
        return 0
    if args.url is not None:
        return TerminalChat(args.url.rstrip("/"), token).chat(args.ask)
    # Imported here, because it needs extras, which neither `--help` nor `--url` does.
    from rag_r1.serving.terminal.local_server import local_server

    with local_server(args) as running:
        return TerminalChat(running.url, None).chat(args.ask)


def _check_start(args: ChatArguments) -> None:
    """Check the agent's arguments, packages and token or, with --url, the token and the server. Raises
    StartError or RunError with all problems."""
    if args.url is not None:
        with StartChecks() as checks:
            token = checks.run(read_token, TOKEN_VARIABLE)
            checks.run(check_server, args.url.rstrip("/"), token)
        return
    from rag_r1.serving.launch import check_launch

    check_launch(args, [partial(check_extras, "rag-r1 chat", args), partial(read_token, TOKEN_VARIABLE)])


if __name__ == "__main__":
    sys.exit(main())
