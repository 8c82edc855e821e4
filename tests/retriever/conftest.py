"""The demo's tokenizer, and a run of `rag-r1 retriever data` over a small world to compare others with."""

from __future__ import annotations

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.retriever.data import command
from tests.fakes.scored_world import FEW, scored_world


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_sq"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tokenizer):
    """The world and the folder of a run over it."""
    folder = tmp_path_factory.mktemp("made")
    with scored_world(folder, tokenizer) as world:
        assert command.main(world.words(folder / "out", *FEW)) == 0
        yield world, folder / "out"
