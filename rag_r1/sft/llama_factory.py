"""Reads samples for LLaMA-Factory, such as RAG-R1's published SFT data, as SFT rows.

inclusionAI/AgenticLearning publishes its samples as JSON for LLaMA-Factory (RAG-R1/data/SFT). They are cut at
the turns already. Both formats of LLaMA-Factory are read, as a JSON array or as JSON lines:

    alpaca      {"instruction", "input", "output"}, with an optional "history" of pairs
    sharegpt    {"conversations": [{"from", "value"}, ...]} or {"messages": [{"role", "content"}, ...]}

The last text is the target, and all texts before it are context. The context begins with the prompt, in which
the question follows "Question:" on the same line. After the question come the earlier turns, and the
observations between their tags. From these parts a row is made in the same way as from a trace: it gets the
prompt of the chosen protocol, so that reinforcement learning can continue with the same prompt, and each turn
and observation becomes a piece.

Only here is a row of training data split at tags, because such a file does not say where a text comes from.
The texts that are split belong to the context, so none of them is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.data.files.row_files import BrokenRowError, open_rows
from rag_r1.data.sft_rows import Piece, SftRow
from rag_r1.io.errors import DataError
from rag_r1.protocols import Answer, Document, Protocol
from rag_r1.sft.segment import Trace, UnusableSampleError, check_text, cut_at_stop, sample_kind, samples_of

#: Names of the model's role in messages.
_MODEL_ROLES = ("assistant", "gpt", "function_call")
#: Marks the question in a prompt.
_QUESTION = "Question:"


class _Text(NamedTuple):
    """A text of a published sample."""

    text: str
    is_from_model: bool


def read_samples(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the number (from 1) and the contents of each row of a JSON array or of JSON lines.

    A line that is not JSON has a BrokenRowError in place of the contents. Raises DataError if the file
    cannot be read.
    """
    with open_rows(Path(path), (), ()) as (_, rows):
        yield from rows


def sample_of(row: Any, protocol: Protocol, sample_id: str) -> tuple[SftRow, list[Document]]:
    """Convert a published sample to an SFT row; returns it with the observations in its context.

    Raises DataError if `row` is not a sample, which includes a BrokenRowError in its place, and
    UnusableSampleError if it is a sample that cannot be used in this protocol.
    """
    if isinstance(row, BrokenRowError):
        raise row
    texts = _texts(row)
    target, is_from_model = texts.pop()
    if not is_from_model or not target.strip():
        raise DataError("its last text is not the model's")
    question, remainder = _question(texts[0].text, protocol)
    pieces = _pieces([remainder, *(later.text for later in texts[1:])], protocol)
    target = cut_at_stop(target.strip(), protocol, "the target")
    check_text(question, target, *(piece.text for piece in pieces))
    observations = [Document("published", piece.text) for piece in pieces if not piece.generated]
    trace = Trace(sample_id, question, (*pieces, Piece(target, generated=True)), tuple(observations))
    sample = samples_of(trace, protocol)[-1]
    kind = sample_kind(after_observation=bool(pieces), answers=isinstance(protocol.parse(target), Answer))
    return replace(sample, id=sample_id, kind=kind), observations


def _texts(row: Any) -> list[_Text]:
    """Return the texts of a sample, of which there are at least two, in order. Raises DataError if `row` is
    not a sample."""
    if not isinstance(row, Mapping):
        raise DataError("it is not a JSON object")
    turns = _value(row, "conversations", "messages")
    if turns is not None:
        messages = [_message(turn) for turn in turns] if isinstance(turns, list) else []
        texts = [_Text(text, role in _MODEL_ROLES) for role, text in messages if role != "system"]
    else:
        parts = [row.get(name) for name in ("instruction", "input") if row.get(name)]
        history = row.get("history") or []
        if not isinstance(history, list) or not all(isinstance(p, list) and len(p) == 2 for p in history):
            raise DataError("its history is not a list of pairs")
        texts = [text for prompt, reply in history for text in (_Text(prompt, False), _Text(reply, True))]
        if not all(isinstance(part, str) for part in [*parts, row.get("output")]):
            raise DataError("it has neither instruction and output nor conversations")
        texts += [_Text("\n".join(parts), False), _Text(row["output"], True)]
    if len(texts) < 2 or not all(isinstance(text, str) for text, _ in texts):
        raise DataError("it has no prompt and answer")
    return texts


def _message(turn: Any) -> tuple[Any, Any]:
    """Return (role, text) of a message in either naming; None for a missing one. Raises DataError if it is
    not an object."""
    if not isinstance(turn, Mapping):
        raise DataError("one of its messages is not a JSON object")
    return _value(turn, "from", "role"), _value(turn, "value", "content")


def _value(row: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of these keys that is present and not null; None if there is none."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _question(prompt: str, protocol: Protocol) -> tuple[str, str]:
    """Return (question, text after it) of a prompt. Raises DataError if it has no question."""
    _, marker, remainder = prompt.partition(_QUESTION)
    if not marker:
        raise DataError(f"its prompt has no {_QUESTION!r}")
    tags = "|".join(re.escape(block.open) for block in protocol.blocks)
    line = re.split(rf"\n|(?={tags})", remainder.lstrip(" "), maxsplit=1)[0]
    if not line.strip():
        raise DataError(f"nothing follows {_QUESTION!r} in its prompt")
    return line.strip(), remainder[remainder.index(line) + len(line) :]


def _pieces(texts: Iterable[str], protocol: Protocol) -> list[Piece]:
    """Split a context into its turns and observations.

    Observations are neutralised, and formatted by the template of the protocol. Raises UnusableSampleError if
    turns and observations do not alternate.
    """
    tags = protocol.tags.information
    pieces: list[Piece] = []
    remainder = "".join(texts)
    while remainder.strip():
        turn, opening, remainder = remainder.partition(tags.open)
        location = f"turn {len(pieces) // 2 + 1}"
        pieces.append(Piece(cut_at_stop(turn.strip(), protocol, location), generated=True))
        body, closing, remainder = remainder.partition(tags.close)
        if not opening or not closing:
            raise UnusableSampleError(
                "unreadable", f"{location} is not followed by {tags.open} and {tags.close}"
            )
        text = protocol.format.template.replace("{body}", protocol.neutralise(body.strip("\n")))
        pieces.append(Piece(text, generated=False))
    return pieces
