"""Writes the files of a demo run: the corpus of a train and a test world, and questions as veRL's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.world.facts import make_world
from rag_r1.demo.world.questions import Question, make_questions
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import Protocol

#: Numbers of training and of held-out questions by default.
N_TRAIN, N_VAL = 4000, 160


@dataclass(frozen=True)
class DemoData:
    """The data of a demo run."""

    #: Passages of the train and the test world.
    passages: tuple[dict[str, str], ...]
    train: list[Question]
    #: The held-out questions, about the test world.
    val: list[Question]


def demo_data(seed: int, train: int = N_TRAIN, val: int = N_VAL) -> DemoData:
    """Make the train world (1,000 people) and the test world (200 people) of a seed, with their questions.

    `train` and `val` are the numbers of the questions about them. Raises ValueError if a world is too small
    for so many.
    """
    train_world = make_world(seed, "train", people=1000, places=200)
    test_world = make_world(seed, "test", people=200, places=45)
    return DemoData(
        train_world.passages + test_world.passages,
        make_questions(train_world, train, seed),
        make_questions(test_world, val, seed),
    )


def to_row(question: Question, index: int, split: str, protocol: Protocol) -> QuestionRow:
    """Convert a question to a row of the data set; `data_source` groups validation metrics by kind."""
    return QuestionRow(
        question.text,
        golds=(question.gold,),
        prompt=tuple(protocol.messages(question.text)),
        id=question.id,
        split=split,
        data_source=f"demo/{question.kind}",
        protocol=protocol.name,
        index=index,
        ability="search",
        metadata={
            "kind": question.kind,
            # The passage about each entity, which states the fact, has the entity as its title.
            "supporting_titles": [lookup.entity for lookup in question.lookups],
        },
    )


def write_demo(
    out: Path,
    protocol: Protocol,
    seed: int,
    train: int = N_TRAIN,
    val: int = N_VAL,
    make_data: Callable[[int, int, int], DemoData] = demo_data,
) -> DemoData:
    """Write `corpus.jsonl`, `train.parquet` and `val.parquet` into the folder `out`; returns the data.

    `make_data` makes the data from `seed`, `train` and `val`. Raises its errors, and OSError.
    """
    data = make_data(seed, train, val)
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "corpus.jsonl", data.passages)
    for name, questions in (("train", data.train), ("val", data.val)):
        rows = (to_row(question, index, name, protocol) for index, question in enumerate(questions))
        write_rows(out / f"{name}.parquet", rows)
    return data
