"""A teacher for any English documents: it asks for the gap in a sentence, seeing the requests only.

    python -m tests.fakes.cloze_teacher

For kind `one_hop` the gap is the first piece of `code` in a sentence, for `number_date` its first number; it
declines all other kinds. As the reader it fills the gap from passages that have the sentence. In a
conversation it searches for the words of the sentence and answers from what is found. It keeps nothing
between requests. The address is printed when it is ready; it ends with its standard input.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rag_r1.demo.pipeline.teacher import completion
from rag_r1.demo.traces.turns import turn
from tests.fakes.openai_server import Reply
from tests.fakes.own_teacher import UNKNOWN, ListingServer

GAP = "____"
BEGINNING, END = "What completes “", "”?"
#: What is asked for, by kind.
_GAPS = {"one_hop": re.compile(r"`([^`\s]{3,40})`"), "number_date": re.compile(r"(?<![\w.])(\d+)(?![\w.]\w)")}
#: Words of a sentence, without what its form is made of.
_LEAST_WORDS, _MOST_WORDS = 6, 30
_TRACE_WORDS = 8


def sentences(text: str) -> list[str]:
    """The plain sentences of a passage: no rows of tables, no lines of code, nothing that JSON escapes."""
    whole = re.sub(r"\s+", " ", text)
    found = re.findall(r"(?:(?<=[.:] )|^)([A-Z][^.|\"\\{}“”]+(?:\.\w[^.|\"\\{}“”]*)*\.)(?= |$)", whole)
    return [text for text in found if _LEAST_WORDS <= len(text.split()) <= _MOST_WORDS]


def ask(kind: str, texts: Sequence[str]) -> tuple[str, str] | None:
    """A question about the first sentence of a passage that has something to ask for, and its answer."""
    for sentence in sentences(texts[0]) if kind in _GAPS else ():
        gap = _GAPS[kind].search(sentence)
        if gap is not None and sentence.count(gap[1]) == 1:
            return f"{BEGINNING}{sentence[: gap.start(1)]}{GAP}{sentence[gap.end(1) :]}{END}", gap[1]
    return None


def sentence_of(question: str) -> str:
    """The sentence with the gap that a question quotes."""
    return question.removeprefix(BEGINNING).removesuffix(END)


def fill(question: str, texts: Sequence[str]) -> str | None:
    """What stands at the gap of a question in the first text that has the sentence."""
    before, _, after = sentence_of(question).partition(GAP)
    if not after:
        return None
    sentence = re.compile(f"{re.escape(before)}(\\S{{1,60}}?){re.escape(after)}")
    matches = (sentence.search(re.sub(r"\s+", " ", text)) for text in texts)
    return next((match[1] for match in matches if match), None)


def play(messages: Sequence[Mapping[str, str]]) -> str:
    """The next turn of a conversation: one search for words around the gap, then the answer."""
    question = messages[0]["content"].rpartition("Question: ")[2].strip()
    observations = [message["content"] for message in messages[1:] if message["role"] == "user"]
    if observations:
        return turn("I read the passages.", "answer", fill(question, observations) or UNKNOWN)
    words = re.findall(r"\w{3,}", sentence_of(question).replace(GAP, " "))
    return turn("I need to search.", "search", " ".join(words[:_TRACE_WORDS]))


def reply(body: dict[str, Any]) -> Reply:
    """The reply to any request of a run."""
    try:
        case = json.loads(body["messages"][-1]["content"])
    except ValueError:
        return completion(play(body["messages"]), body)
    texts = [passage["text"] for passage in case.get("passages", [])]
    if "task" in case:
        question, answer = ask(case["kind"], texts) or (None, None)
        made = {"question": question, "answer": answer, "passages": [1]} if question else {"question": None}
        return json.dumps(made)
    if "by itself" in body["messages"][0]["content"]:
        return json.dumps({"answer": "yes"})
    return json.dumps({"answer": fill(case["question"], texts) or UNKNOWN})


def main() -> None:
    with ListingServer(reply) as server:
        print(server.base, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
