"""A conversation in the terminal: asks the user's questions and shows each event of the streamed answers.

Ctrl-C stops an answer; at the prompt it ends the conversation, as Ctrl-D does. Control characters in the
server's texts are replaced, so that no passage or answer can control the terminal.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TextIO

from rag_r1.io.terminal_text import print_error
from rag_r1.serving.terminal.client import ChatError, stream_answer
from rag_r1.serving.wire import MAX_MESSAGES

#: The most characters of a passage that are shown.
_MAX_PASSAGE_CHARACTERS = 160
#: Terminal escape codes.
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


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
        """Ask the questions or, without any, those that the user types. Returns the exit status: 1 if one of
        `questions` got no answer, else 0. Raises ChatError if the input is not text."""
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
            elif line.startswith("/") and line[1:].isalpha():
                print_error(f"no command {line}: the only one is /new, which begins a new conversation")
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
            # Whole pairs of question and answer, and with the next question no more than the API accepts.
            self.messages = [*messages, {"role": "assistant", "content": text}][2 - MAX_MESSAGES :]
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
    """Return a text that cannot control the terminal: tabs and all kinds of spaces become ordinary spaces,
    and other characters that are not printable become `?`, except for line breaks."""
    text = "".join(" " if char == "\t" or unicodedata.category(char) == "Zs" else char for char in text)
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
