"""A folder of documents about the demo's world, a teacher, and the demo's policy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import PROMPT_FILE, World, make_world
from rag_r1.runs.processes import MARK
from tests.fakes.own_teacher import OwnTeacher, write_documents

MODEL = policy_path("rag_r1_mq")
KINDS = "[one_hop, number_date, bridge, comparison]"


@dataclass
class Own:
    """The documents, the teacher, and the command's words."""

    world: World
    documents: Path
    teacher: OwnTeacher = field(default_factory=OwnTeacher)

    def words(self, out: Path, *more: str) -> list[str]:
        """The words of `rag-r1 own` for a small run."""
        return [
            *("own", str(self.documents), "--out", str(out), "--teacher", self.teacher.base),
            *("--model", str(MODEL), "--platform", "cpu", "--per-kind", "12"),
            *(f"policy.prompt={PROMPT_FILE}", f"questions.kinds={KINDS}", "questions.test_share=0.4", *more),
        ]


@pytest.fixture(autouse=True)
def unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command marks the processes that it starts; a test does not keep the mark."""
    monkeypatch.setenv(MARK, os.environ.get(MARK, ""))


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    world = make_world(0, "train", people=24, places=10, words=24)
    made = Own(world, write_documents(tmp_path_factory.mktemp("own") / "documents", world))
    with made.teacher:
        yield made
