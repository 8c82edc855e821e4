"""Segments trajectories into samples for supervised fine-tuning (RAG-R1, section 3.1.2).

RAG-R1 lets a teacher answer questions with search, keeps the traces with right answers, and cuts them at
every search and at the answer. Each turn then becomes the target of a sample, and everything before it is the
context. There are four kinds of samples:

    question -> answer                   the policy answers from what it knows
    question -> search
    question + information -> search
    question + information -> answer

In the layout `whole`, a trace becomes a single sample, in which every turn is a target. A causal model sees
the same contexts and targets then, but computes each token only once (rag_r1/demo/traces).

Where a text comes from is read from the record, never guessed from the text. A target is a turn that the
policy generated, up to the closing tag at which a generation stops. An observation is rendered again from the
documents in the record, in the protocol of the student and with the control tokens of the student's tokenizer
neutralised, just as in the student's own rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rag_r1.agent import Trajectory, Turn
from rag_r1.data.sft_rows import Piece, SftRow
from rag_r1.protocols import Answer, Calls, Document, Protocol, Search
from rag_r1.protocols.actions import has_lone_surrogate
from rag_r1.rewards import cover_exact_match, exact_match
from rag_r1.sft.copy_check import find_quotation

Layout = Literal["cut", "whole"]
Metric = Literal["em", "cover_em"]

#: The kinds of samples in the layout `cut`.
KINDS = (
    "question -> answer",
    "question -> search",
    "question + information -> search",
    "question + information -> answer",
)
#: The kind of a sample in the layout `whole`.
WHOLE = "whole trace"

#: The reasons for which traces and samples are left out, with explanations for the summary.
REASONS = {
    "other_protocol": "the trace was made in another protocol",
    "failure": "a search, a tool or the engine failed",
    "unanswered": "there is no answer",
    "no_golds": "there are no gold answers to compare with",
    "wrong": "the answer is wrong",
    "rewritten": "the context was rewritten",
    "other_action": "a turn is neither a search nor an answer",
    "unreadable": "a turn does not parse to what the record says was called",
    "control_text": "a turn contains tags of the environment or a token that controls the model",
    "thought_only": "enough traces answer without a search (--thought-only)",
    "quotes": "a target quotes a document",
    "too_long": "the context or the target is too long (--max-context, --max-target)",
    "repeated": "the same sample again",
}


class UnusableSampleError(ValueError):
    """Raised for a trace or a sample that is left out.

    `reason` is a key of REASONS; the message describes the case, or explains the reason.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(detail or REASONS[reason])
        self.reason = reason


@dataclass(frozen=True)
class Trace:
    """A trace that can be used."""

    id: str
    question: str
    #: Turns and observations, which alternate. The last one is the turn with the answer.
    pieces: tuple[Piece, ...]
    #: All documents that were shown.
    documents: tuple[Document, ...]

    @property
    def has_search(self) -> bool:
        """Whether the answer comes after a search."""
        return len(self.pieces) > 1


def _check_answered(record: Trajectory) -> str:
    """Return the trajectory's answer. Raises UnusableSampleError if it has none."""
    if record.answer is None or record.status != "answered":
        raise UnusableSampleError("unanswered", f"it ended as {record.status}")
    return record.answer


def check_right(record: Trajectory, golds: Sequence[str], metric: Metric = "em") -> None:
    """Raise UnusableSampleError unless the trajectory's answer is right."""
    answer = _check_answered(record)
    if not golds:
        raise UnusableSampleError("no_golds")
    score = exact_match if metric == "em" else cover_exact_match
    if not score(answer, golds):
        raise UnusableSampleError("wrong", f"{answer[:80]!r}, not {golds[0][:80]!r}")


def trace_of(record: Trajectory, protocol: Protocol, trace_id: str | None = None) -> Trace:
    """Convert a trajectory to a trace.

    `protocol` must also neutralise the student's control tokens, as `SftTokens.protocol` does. Raises
    UnusableSampleError if the trajectory cannot be used.
    """
    if record.protocol != protocol.name:
        raise UnusableSampleError("other_protocol", f"{record.protocol}, not {protocol.name}")
    answer = _check_answered(record)
    if record.failures:
        raise UnusableSampleError("failure", f"{record.failures[0].kind}: {record.failures[0].detail}")
    if not record.turns:
        raise UnusableSampleError("unreadable", "it has no turns")
    pieces: list[Piece] = []
    documents: list[Document] = []
    for number, turn in enumerate(record.turns, 1):
        is_last = number == len(record.turns)
        text = _turn_text(turn, number, answer if is_last else None, protocol)
        pieces.append(Piece(text, generated=True))
        if not is_last:
            pieces.append(Piece(_observation(turn, text, number, protocol), generated=False))
            documents += [document for call in turn.calls for document in call.documents or ()]
    check_text(trace_id or record.id, record.question, *(piece.text for piece in pieces))
    return Trace(trace_id or record.id, record.question, tuple(pieces), tuple(documents))


def _turn_text(turn: Turn, number: int, answer: str | None, protocol: Protocol) -> str:
    """Return the text of a turn up to its closing tag.

    Raises UnusableSampleError unless the text is the `answer` of the record or, with None, the turn's search.
    """
    if turn.row:
        raise UnusableSampleError("rewritten", f"turn {number} is in row {turn.row}")
    expected = ("search", "call") if answer is None else ("answer",)
    if turn.action not in expected or turn.status != "ok":
        raise UnusableSampleError("other_action", f"turn {number} is {turn.action} ({turn.status})")
    text = cut_at_stop(turn.text, protocol, f"turn {number}")
    action = protocol.parse(text)
    calls = [(call.tool, dict(call.arguments)) for call in getattr(action, "calls", ())]
    if calls != [(call.tool, call.arguments) for call in turn.calls]:
        raise UnusableSampleError(
            "unreadable", f"turn {number} calls {calls}, and the record names other calls"
        )
    if action.kind != turn.action or (answer is not None and action.text != answer):
        raise UnusableSampleError("unreadable", f"turn {number} is not the record's {turn.action}")
    return text


def cut_at_stop(text: str, protocol: Protocol, location: str) -> str:
    """Cut a generated turn at the closing tag at which a generation stops.

    `location` names the turn in errors. Raises UnusableSampleError if the turn is neither a search nor an
    answer, or if it contains tags or tokens that only the environment may write.
    """
    ends = [end + len(stop) for stop in protocol.stop if (end := text.find(stop)) >= 0]
    text = text[: min(ends, default=len(text))]
    if not isinstance(protocol.parse(text), Search | Calls | Answer):
        raise UnusableSampleError(
            "unreadable", f"{location} is neither a search nor an answer in {protocol.name}"
        )
    tags = [tag for block in protocol.blocks if block.author == "policy" for tag in (block.open, block.close)]
    remainder = text
    for tag in tags:
        remainder = remainder.replace(tag, "\n")
    if protocol.neutralise(remainder) != remainder:
        raise UnusableSampleError(
            "control_text", f"{location} has a tag or token that is not the policy's to write"
        )
    return text


def _observation(turn: Turn, text: str, number: int, protocol: Protocol) -> str:
    """Render the observation after a turn with this text in the student's protocol.

    Raises UnusableSampleError if a call of the turn failed.
    """
    if any(call.status != "ok" or call.documents is None for call in turn.calls):
        raise UnusableSampleError("failure", f"a call of turn {number} was not answered")
    calls = getattr(protocol.parse(text), "calls", ())
    return protocol.observation([call.text for call in calls], [call.documents or [] for call in turn.calls])


def check_text(*texts: str) -> None:
    """Raise UnusableSampleError if a text has a lone surrogate, which no tokenizer and no parquet accepts."""
    if any(map(has_lone_surrogate, texts)):
        raise UnusableSampleError("control_text", "a lone surrogate, which no tokenizer and no file accepts")


def samples_of(trace: Trace, protocol: Protocol, layout: Layout = "cut") -> list[SftRow]:
    """Cut a trace into samples, one for each turn; in the layout `whole` the trace is the only sample."""
    prompt = tuple(protocol.messages(trace.question))

    def row(name: str, kind: str, pieces: Sequence[Piece]) -> SftRow:
        return SftRow(f"{trace.id}/{name}", trace.question, protocol.name, kind, prompt, tuple(pieces))

    turns = [position for position, piece in enumerate(trace.pieces) if piece.generated]
    if layout == "whole":
        pieces = [replace(piece, trained=piece.generated) for piece in trace.pieces]
        return [row("whole", WHOLE, pieces)]
    return [
        row(
            str(number),
            _kind_at(position, trace.pieces),
            [*trace.pieces[:position], replace(trace.pieces[position], trained=True)],
        )
        for number, position in enumerate(turns, 1)
    ]


def _kind_at(position: int, pieces: Sequence[Piece]) -> str:
    """Return the kind of the target at this position of a trace."""
    return sample_kind(after_observation=position > 0, answers=position == len(pieces) - 1)


def sample_kind(*, after_observation: bool, answers: bool) -> str:
    """Return the kind (KINDS) of a target, by whether an observation is before it, and whether it answers."""
    context = "question + information" if after_observation else "question"
    return f"{context} -> {'answer' if answers else 'search'}"


def check_targets(row: SftRow, documents: Sequence[Document]) -> None:
    """Raise UnusableSampleError if a target quotes a document (copy_check.py)."""
    for target in row.targets:
        if quotation := find_quotation(target, documents):
            raise UnusableSampleError("quotes", f"{quotation!r}")


def kinds_of(row: SftRow) -> list[str]:
    """Return the kinds of the targets of a row, in order. A whole trace may have several."""
    if row.kind != WHOLE:
        return [row.kind]
    positions = [position for position, piece in enumerate(row.pieces) if piece.trained]
    return [_kind_at(position, row.pieces) for position in positions]
