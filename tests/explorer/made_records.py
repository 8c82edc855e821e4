"""Records and folders of runs, made by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rag_r1.agent import CallRecord, Trajectory, Turn
from rag_r1.protocols import Document

QUESTION, GOLD = "Where was Mara Torval born?", "Karlen Ford"
PASSAGE = '"Mara Torval"\nThe painter Mara Torval was born in Karlen Ford in 1907.'


def searched(query: str = "Mara Torval", passages: Iterable[str] = (PASSAGE,), **fields: Any) -> Turn:
    """A turn with a search, and the passages that were shown."""
    shown = [Document(f"p{i}", text, 1.0) for i, text in enumerate(passages)]
    return Turn.searched(f"<search> {query} </search>", [query], [shown], **fields)


def failed_search(query: str = "Mara Torval") -> Turn:
    """A turn whose search was not answered."""
    call = CallRecord("search", {"query": query}, None, status="failed")
    return Turn(f"<search> {query} </search>", "search", [call], status="tool_failure")


def answered(text: str | None) -> Turn:
    """The last turn."""
    return Turn(f"<answer> {text} </answer>", "answer")


def record(
    name: str = "q1", answer: str | None = GOLD, turns: Iterable[Turn] | None = None, **fields: Any
) -> dict:
    """A record; `fields` are those of the trajectory, or of the run (`step`, `split`, `right`, ...)."""
    turns = [searched(), answered(answer)] if turns is None else list(turns)
    names = Trajectory.__dataclass_fields__
    own = {key: fields.pop(key) for key in list(fields) if key in names}
    values = {"status": "answered" if answer is not None else "turn_limit", "question": QUESTION, **own}
    em = float(answer == GOLD)
    rewards = values.pop("rewards", {"score": em, "em": em})
    trajectory = Trajectory(name, protocol="rag_r1_mq", turns=turns, answer=answer, rewards=rewards, **values)
    return {"data_source": "hotpotqa", "golds": [GOLD], **fields, **trajectory.to_dict()}


def training(name: str, step: int, answer: str | None = GOLD, **fields: Any) -> dict:
    """A record of a training."""
    return record(name, answer, **{"step": step, "split": "train", **fields})


def lines(records: Iterable[dict]) -> bytes:
    """Records as a file has them, with lone surrogates."""
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    return text.encode("utf-8", "surrogatepass")


def write(path: Path, records: Iterable[dict], append: bool = False) -> Path:
    """A file of records; of a name that ends in .gz, with a gzip member for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = [lines([one]) for one in records]
    if path.suffix == ".gz":
        data = [gzip.compress(line, mtime=0) for line in data]
    with path.open("ab" if append else "wb") as file:
        file.write(b"".join(data))
    return path
