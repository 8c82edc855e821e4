"""`rag-r1 chat`: a chat in the terminal, with a running server or one that the command starts.

    rag-r1 chat --demo
    rag-r1 chat --url http://127.0.0.1:8080

Without --url, the command runs the server of `rag-r1 serve` in a thread; the terminal always is a client of
the server's API. Ctrl-C stops an answer; at the prompt it ends the chat, as Ctrl-D does. Control characters
in the server's texts are replaced.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import model_validator

from rag_r1.http_server.listening import bind_socket, take_token_of
from rag_r1.io.terminal_text import print_error
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.serving.arguments import ChatAgentArguments, refuse_unused, require_one_agent
from rag_r1.serving.command import TOKEN_VARIABLE, check_extras, set_up_logs
from rag_r1.serving.terminal.client import ChatError, check_server, stream_answer

if TYPE_CHECKING:
    from rag_r1.serving.http_server import RunningServer

_DESCRIPTION = """\
Chat with a search agent in the terminal. Each search is shown as it happens, with the passages that it found;
those that contain the words of the answer are named at the end. Ctrl-C stops an answer; /new begins a new
conversation; Ctrl-D, or Ctrl-C at the prompt, ends the chat.

examples:
  rag-r1 chat --demo
  rag-r1 chat --url http://127.0.0.1:8080
  rag-r1 chat --demo --ask "Where was Mara Torval born?"
"""
#: The most characters of a passage that are shown.
_MAX_PASSAGE_CHARACTERS = 160
#: Terminal escape codes.
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


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
    with _local_server(args) as running:
        return TerminalChat(running.url, None).chat(args.ask)


def _check_start(args: ChatArguments, token: str | None) -> None:
    """Check the arguments or the server. Raises StartError, RunError or ChatError with all problems."""
    if args.url is not None:
        return check_server(args.url.rstrip("/"), token)
    from rag_r1.serving.launch import check_launch

    check_launch(args, [partial(check_extras, "rag-r1 chat", args)])


@contextmanager
def _local_server(args: ChatArguments) -> Iterator[RunningServer]:
    """Yield a server on a free port of this machine, which runs in a thread until the block ends. Raises
    RunError."""
    # Imported here, because these modules need extras, which neither `--help` nor `--url` does.
    from rag_r1.serving.http_server import serve
    from rag_r1.serving.launch import launch_agent

    started: Future[RunningServer] = Future()
    with bind_socket("127.0.0.1", 0) as listener, launch_agent(args) as launched:

        def run_server() -> None:
            """Run the server in this thread; an error before it answers becomes the result of `started`."""
            fault: object = "its server ended"
            try:
                asyncio.run(serve(args, launched, listener, started.set_result, drain_s=1))
            except BaseException as error:
                fault = error
            if not started.done():
                started.set_exception(RunError(f"the chat could not begin: {fault}"))

        thread = threading.Thread(target=run_server, daemon=True)
        thread.start()
        running = started.result()
        try:
            yield running
        finally:
            running.stop()
            thread.join(10)  # seconds; a thread that hangs does not keep the process


class TerminalChat:
    """A conversation with the server at `url`."""

    def __init__(
        self, url: str, token: str | None, out: TextIO | None = None, read: Callable[[], str] | None = None
    ):
        """`read` returns the user's next line, and raises EOFError after the last one."""
        self.url = url
        self.token = token
        self.out = out or sys.stdout
        self.read = read or (lambda: input("\n> " if sys.stdin.isatty() else ""))
        #: The conversation so far, as messages of the API.
        self.messages: list[dict[str, str]] = []
        self._colours = self.out.isatty()
        self._in_line = False  # whether the last line, a piece of reasoning, is still open

    def chat(self, questions: Sequence[str] = ()) -> int:
        """Ask the questions or, without any, those that the user types. Returns the exit status. Raises
        ChatError if the input is not text."""
        if questions:
            # A list, so that all of them are asked, even if one gets no answer.
            return 0 if all([self.answer(question) for question in questions]) else 1
        while True:
            try:
                line = self.read().strip()
            except (EOFError, KeyboardInterrupt):
                self._line("")
                return 0
            except UnicodeDecodeError as error:
                raise ChatError(f"the input is not {error.encoding} text: convert it with `iconv`") from error
            if line == "/new":
                self.messages = []
            elif line:
                self.answer(line)

    def answer(self, question: str) -> bool:
        """Ask a question and show what the server streams. Returns whether there was an answer; if so, it
        becomes part of the conversation."""
        messages = [*self.messages, {"role": "user", "content": question}]
        text = ""
        try:
            with closing(stream_answer(self.url, messages, self.token)) as pieces:
                for kind, data in pieces:
                    text = data if kind == "answer" else text
                    self._check_and_show(kind, data)
        except KeyboardInterrupt:
            self._line("stopped", _DIM)
            return False
        except ChatError as error:
            wait = f" (try again in {error.wait_s:.0f} s)" if error.wait_s else ""
            self._end_line()
            print_error(f"{error}{wait}")
            return False
        if text:
            self.messages = [*messages, {"role": "assistant", "content": text}]
        return bool(text)

    def _check_and_show(self, kind: str, data: Any) -> None:
        """Show a part of the stream. Raises ChatError for an event that does not have the API's form."""
        try:
            self._show(kind, data)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ChatError(f"an event {kind!r} of the answer is not of the chat API's form") from error

    def _show(self, kind: str, data: Any) -> None:
        """Show a text or an event of `stream_answer`."""
        if kind == "reasoning":
            self._write(data if self._in_line else data.lstrip(), _DIM)
            self._in_line = True
        elif kind == "answer":
            self._line(data, _BOLD)
        elif kind == "queued":
            self._line(f"waiting; {data['ahead']} before this one", _DIM)
        elif kind == "passages":
            if len(data["calls"]) > 1:
                self._line(f"{len(data['calls'])} searches at once:", _DIM)
            for call in data["calls"]:
                self._show_call(call)
        elif kind == "citations":
            self._show_citations(data)
        elif kind == "ended" and data["status"] != "answered":
            self._line(f"no answer ({data['status']})", _BOLD)

    def _show_citations(self, data: dict[str, Any]) -> None:
        """Show whether the answer is right, if that is known, and the passages that contain its words."""
        if data.get("verdict") == "right":
            self._line("right: it is the known answer", _DIM)
        elif data.get("verdict") == "wrong":
            self._line(f"wrong; the right answer is: {', or '.join(map(str, data['golds']))}", _BOLD)
        if data.get("grounded") is False:
            self._line("ungrounded: no passage contains these words", _BOLD)
        elif data["passages"]:
            self._line("the model's words occur in:", _DIM)
            for title in dict.fromkeys(str(passage["title"]) for passage in data["passages"]):
                self._line(f"  * {title}")

    def _show_call(self, call: dict[str, Any]) -> None:
        """Show a search with the beginning of each passage."""
        arguments = call["arguments"]
        self._line(f"{call['tool']}: {arguments.get('query', arguments)}  ({call['seconds']:.2f} s)")
        for document in call["documents"]:
            text = " ".join(str(document["text"]).split())
            self._line(f"    {document['title']}: {text[:_MAX_PASSAGE_CHARACTERS]}", _DIM)
        if not call["documents"]:
            self._line("    nothing found" if call["status"] == "ok" else f"    {call['status']}", _DIM)

    def _line(self, text: object, style: str = "") -> None:
        """Write a text on a separate line."""
        self._end_line()
        self._write(text, style, "\n")

    def _end_line(self) -> None:
        """End an open line of reasoning, so that the next text begins a new line."""
        if self._in_line:
            self._write("", suffix="\n")
        self._in_line = False

    def _write(self, text: object, style: str = "", suffix: str = "") -> None:
        """Write a text without its control characters, in a style if the output is a terminal."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        text = plain_text(str(text)).encode(encoding, "replace").decode(encoding)
        text = f"{style}{text}{_PLAIN}" if style and self._colours else text
        self.out.write(f"{text}{suffix}")
        self.out.flush()


def plain_text(text: str) -> str:
    """Return the text with spaces of any kind and tabs as spaces, and with all other characters replaced that
    are not printable, but for line breaks, so that it cannot control the terminal."""
    text = "".join(" " if c == "\t" or unicodedata.category(c) == "Zs" else c for c in text)
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


if __name__ == "__main__":
    sys.exit(main())
