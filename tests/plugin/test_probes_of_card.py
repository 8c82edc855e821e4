"""A question under a probe finds the same in the validations of a training as for a search card."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.corpus.reader import Corpus
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.baselines import Condition
from rag_r1.evaluation.probes.collect import find_passages
from rag_r1.evaluation.probes.suite import plan_conditions
from rag_r1.plugin.probe_rows import COLUMN
from rag_r1.plugin.process_agents import ProcessAgents
from rag_r1.probes.passages import Passages
from rag_r1.probes.probes import PROBES
from rag_r1.protocols import SEARCH, Document
from rag_r1.rollouts.requests import QuestionSet
from rag_r1.rollouts.session import RunSetup
from tests.plugin.scripted_loop import PROMPT_LENGTH, RESPONSE_LENGTH, config

PAGES, TOPK = 12, 2
TEXTS = {str(i): f'"Page {i // 3}"\ntext {i} of {i % 5}' for i in range(3 * PAGES)}


class InOrder:
    """Finds as many passages of the corpus as it is asked for, from one on that depends on the query."""

    def __init__(self, options):
        self.topk = options["topk"]

    async def search(self, queries):
        return [self._matches(sum(map(ord, query))) for query in queries]

    def _matches(self, first):
        names = [str((first + i) % len(TEXTS)) for i in range(self.topk)]
        return [Document(name, TEXTS[name]) for name in names]


BLOCK = {
    "probes": [probe for probe in PROBES if probe != "real"],
    "retriever": {"tool": f"{__name__}:InOrder"},
    "validation_retriever": {"topk": TOPK},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """The file of passages; its corpus lacks the last page."""
    folder = tmp_path_factory.mktemp("passages")
    rows = [{"id": name, "contents": text} for name, text in TEXTS.items()][:-3]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = [GoldEvidence(frozenset(TEXTS), frozenset(f"page {i}" for i in range(PAGES)))]
    corpus = Corpus([folder / "corpus.jsonl"])
    find_passages(corpus, wanted, folder / "passages.json", sample_size=30, seed=5, progress=False)
    return folder / "passages.json"


@pytest.fixture(scope="module")
def sides(file, tokenizer) -> tuple[ProcessAgents, RunSetup, Passages]:
    """The agents of a training, and what a card is made from."""
    cfg = config(**BLOCK, probe_passages=str(file))
    settings = RagR1Config.from_config(OmegaConf.to_container(cfg.rag_r1))
    limits = RowLimits(PROMPT_LENGTH, RESPONSE_LENGTH)
    setup = AgentSetup.of(settings, tokenizer, limits).for_validation(settings, limits)
    ready = RunSetup(QuestionSet(), settings, None, setup, settings.validation_retriever, None, None)
    training = ProcessAgents(cfg, tokenizer)
    return training, ready, training.probe_agent.passages


def as_veRL_passes_it(row: QuestionRow, probe: str) -> dict:
    """The row's columns in a batch, in which lists are numpy arrays."""
    columns = {**row.to_row(), COLUMN: probe}
    columns["extra_info"] = {
        name: np.array(value, dtype=object) if isinstance(value, list) else value
        for name, value in columns["extra_info"].items()
    }
    return columns


async def search(setup: AgentSetup, queries: list[str]):
    return await setup.tools()[SEARCH].call([{"query": query} for query in queries])


ROWS = st.builds(
    QuestionRow,
    question=st.just("Which?"),
    golds=st.lists(st.sampled_from(["text 4", "3", "no such"]), max_size=2).map(tuple),
    id=st.text(min_size=1, max_size=4),
    split=st.just("test"),
    metadata=st.fixed_dictionaries(
        {},
        optional={
            "supporting_titles": st.lists(st.integers(0, PAGES).map("Page_{}".format), max_size=3),
            "supporting_ids": st.lists(st.integers(0, 3 * PAGES).map(str), max_size=3),
        },
    ),
)


@given(row=ROWS, queries=st.lists(st.text(max_size=6), min_size=1, max_size=2))
def test_a_training_and_a_card_show_the_same_for_the_same_question_and_query(sides, row, queries):
    training, ready, passages = sides
    ready.questions.rows[:] = [row]
    played: dict[str, Condition] = {it.name: it for it, _ in plan_conditions(ready, passages).conditions}
    assert {"real", "closed_book", "empty", "random"} <= set(played)
    for probe in (name for name in BLOCK["probes"] if name in played and played[name].applies(row)):
        columns = as_veRL_passes_it(row, probe)
        in_training = training.of_row(columns, columns["extra_info"])
        of_card = played[probe].setup(row)
        assert in_training.budget == of_card.budget
        results = asyncio.run(search(in_training, queries))
        assert results == asyncio.run(search(of_card, queries))
        gold = passages.evidence(row.metadata, row.golds, TOPK)
        of_gold = [[gold.holds(document) for document in documents] for documents in results]
        if probe in ("random", "withheld"):
            assert all(len(documents) == TOPK for documents in results) and not any(map(any, of_gold))
        if probe == "gold":
            # Not their pages' other passages: where the search finds those, they stay where it ranks them.
            named = [[document in gold.passages for document in documents] for documents in results]
            assert all(it == sorted(it, reverse=True) for it in named)
            assert set(gold.passages) <= set(chain.from_iterable(results))
