"""Converts a trajectory record to a row of the table, and collects its texts for the search.

The columns of a row are declared in schema.py. A record may come from anywhere, so the type of every value is
checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rag_r1.agent.trajectory import query_key
from rag_r1.data.rows import as_golds
from rag_r1.evaluation.failure_causes import cause_of, verdict
from rag_r1.io.errors import DataError
from rag_r1.protocols.actions import SEARCH, well_formed

#: The largest whole number in a row. Larger ones are not exact in JSON readers and in DOUBLE.
_MAX_NUMBER = 1 << 53
#: The smallest number that a row does not have. Squares and sums of smaller ones are finite.
_TOO_LARGE = 1e100


def row_of(record: Any, run: str, kind: str | None) -> dict[str, Any]:
    """Convert a record to a row, which also has the `texts` and `passages` for the search, but no `tid` yet.

    `kind` is the kind of the run; if it is None, it follows from the record's split and step. Raises
    DataError if `record` is not a trajectory record.
    """
    try:
        return _row(record, run, kind)
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        raise DataError(f"not a trajectory record ({error})") from error


def _row(record: Any, run: str, kind: str | None) -> dict[str, Any]:
    """Do the work of `row_of`; raises various errors if `record` is not a trajectory record."""
    if not isinstance(record, dict) or not isinstance(record.get("turns"), list):
        raise TypeError("it has no list `turns`")
    turns = record["turns"]
    question = _text(record.get("question"))
    answer = record.get("answer")
    calls = [call for turn in turns for call in turn.get("calls") or ()]
    rewards = {str(name): _number(value) for name, value in (record.get("rewards") or {}).items()}
    split = _text(record.get("split"))
    step = _whole_number(record.get("step"))
    kind = _kind(split, step) if kind is None else kind
    key = query_key(question)
    golds = as_golds(record.get("golds"))
    return {
        "id": _text(record.get("id")),
        "run": run,
        "kind": kind,
        "step": step,
        "split": split,
        "source": _text(record.get("data_source")),
        "question": well_formed(question),
        "answer": None if answer is None else _text(answer),
        "golds": [well_formed(gold) for gold in golds],
        "right": verdict(record),
        "score": rewards.get("score"),
        "status": _text(record.get("status")),
        "masked": "score" in rewards and rewards["score"] is None,
        "turns": len(turns),
        "searches": sum(call.get("tool") == SEARCH for call in calls),
        "repeated": _whole_number(sum(_whole_number(turn.get("repeated_queries")) or 0 for turn in turns)),
        "tool_failures": sum(turn.get("status") == "tool_failure" for turn in turns),
        "prompt_tokens": _whole_number(record.get("prompt_tokens")),
        "generated_tokens": _whole_number(record.get("generated_tokens")),
        "observed_tokens": _whole_number(record.get("observed_tokens")),
        "seconds": _number(record.get("seconds")),
        "question_key": _digest(key),
        "group": _digest(f"{run}\0{kind}\0{split}\0{step}\0{record.get('group') or key}"),
        "cause": cause_of(record),
        "checkpoint": _text(record.get("model")) or None,
        "reward_terms": {well_formed(name): value for name, value in rewards.items() if value is not None},
        **_searched_texts([question, _text(answer)], turns, calls),
    }


def _kind(split: str, step: int | None) -> str:
    """Derive the kind of a trajectory from its record, because the kind of its run is not known."""
    if step is None:
        return "other"
    return "training" if split.startswith("train") else "validation"


def _searched_texts(texts: list[str], turns: list[Any], calls: list[Any]) -> dict[str, list[str]]:
    """Return the texts that are searched: `texts` with those of turns and calls, and the passages."""
    texts = [*texts, *(_text(turn.get("text")) for turn in turns)]
    texts += [str(value) for call in calls for value in (call.get("arguments") or {}).values()]
    documents = (document for call in calls for document in call.get("documents") or ())
    return {"texts": texts, "passages": [str(document.get("contents", "")) for document in documents]}


def _text(value: Any) -> str:
    """Convert a value to text; None becomes an empty text."""
    return "" if value is None else well_formed(str(value))


def _number(value: Any) -> float | None:
    """Return a value as a number; None if it is not a number, or infinite, or too large to compute with."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _TOO_LARGE else None


def _whole_number(value: Any) -> int | None:
    """Return a number without its fraction; None if the value is not a number, or too large for the table."""
    number = _number(value)
    return None if number is None or abs(number) > _MAX_NUMBER else int(number)


def _digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def json_row(values: Mapping[str, Any], max_characters: int | None = None) -> dict[str, Any]:
    """Convert a row of the table to JSON types.

    If the question or the answer has more than `max_characters`, it is cut and ends with `…`.
    """
    row = dict(values)
    row["reward_terms"] = dict(row.get("reward_terms") or {})
    if max_characters is not None:
        for name in ("question", "answer"):
            if row[name] is not None and len(row[name]) > max_characters:
                row[name] = row[name][: max_characters - 1] + "…"
    return row
