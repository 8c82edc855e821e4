"""A small world with its three servers: teacher and reader in processes of their own, and the search."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.question_models import model_process
from tests.fakes.question_world import WorldRetriever, make_corpus

#: The key that the servers are sent.
KEY = "sk-not-to-be-told"


@dataclass
class Served:
    """A corpus and its servers. `logs`: what the teacher and the reader have answered."""

    folder: Path
    rows: list[dict[str, str]]
    teacher: str
    reader: str
    retriever: WorldRetriever

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus.jsonl"

    def words(self, out: Path, *more: str, per_kind: int = 25) -> list[str]:
        """The words of `rag-r1 questions`."""
        return [
            *("--corpus", str(self.corpus), "--out", str(out), "--retriever-url", self.retriever.url),
            *("--base-url", self.teacher, "--teacher-model", "t"),
            *("--reader-url", self.reader, "--reader-model", "r"),
            *("--per-kind", str(per_kind), "--in-flight", "8", *more),
        ]

    def entries(self, role: str) -> list[dict]:
        """The lines of a log."""
        return [json.loads(line) for line in (self.folder / f"{role}.log").read_text().splitlines()]

    def asked(self) -> Counter[str]:
        """How often each request was answered."""
        return Counter(entry["request"] for role in ("teacher", "reader") for entry in self.entries(role))


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    rows = make_corpus(0, people=40, places=15)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for role in ("teacher", "reader"):
        (folder / f"{role}.log").touch()
    with (
        model_process("teacher", folder / "teacher.log") as teacher,
        model_process("reader", folder / "reader.log") as reader,
        WorldRetriever(rows) as retriever,
    ):
        yield Served(folder, rows, teacher, reader, retriever)
