"""Evaluates all models of a pipeline on the same held-out questions.

Each model plays every question once with greedy decoding, in plain torch (simulate.py). The turn loop is that
of the training, and the search is an index of the whole corpus in this process, which ranks passages like the
retrieval server. The models are thus compared under the same conditions. The scores of an episode are

    em         1 if the answer is an exact match, else 0
    searches   number of queries that were sent
    format     1 if every turn was a search or an answer and the last one answered, else 0

The scores of a model are written when it has played all questions, so an interrupted evaluation continues
with the next model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.agent import Budget, Trajectory
from rag_r1.agent.records import summary
from rag_r1.demo.policy import load_policy
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts
from rag_r1.demo.world import Question
from rag_r1.io.atomic_files import write_text
from rag_r1.protocols import Protocol
from rag_r1.rewards import exact_match

#: The file with the scores of all models.
SCORES = "scores.json"
#: Number of questions that are played at the same time. It limits the memory.
_BATCH = 64

#: The scores of a model (`score_of`), in the order of the questions.
Scores = list[dict[str, Any]]


def evaluate(
    folder: Path,
    models: Mapping[str, Path],
    protocol: Protocol,
    questions: Sequence[Question],
    passages: Sequence[dict[str, str]],
    budget: Budget,
    topk: int,
) -> dict[str, Scores]:
    """Evaluate all models; returns the scores of each by its name, and writes them into SCORES in `folder`.

    A search returns `topk` of the `passages`, and `budget` limits an episode.
    """
    search = WorldSearch(passages, topk)
    scores: dict[str, Scores] = {}
    for name, model in models.items():
        file = folder / f"scores_{name}.json"
        if not file.exists():
            write_text(file, json.dumps(play(model, protocol, questions, search, budget)), private=True)
        scores[name] = json.loads(file.read_text(encoding="utf-8"))
        em = sum(score["em"] for score in scores[name]) / len(questions)
        print(f"evaluation: {name}: exact match {em:.2f} of {len(questions)} questions")
    write_text(folder / SCORES, json.dumps(scores) + "\n", private=True)
    return scores


def play(
    model: Path, protocol: Protocol, questions: Sequence[Question], search: WorldSearch, budget: Budget
) -> Scores:
    """Play all questions with a model; returns its scores."""
    policy, tokenizer = load_policy(model)
    policy.eval()
    scores: Scores = []
    for start in range(0, len(questions), _BATCH):
        batch = questions[start : start + _BATCH]
        rollouts = run_rollouts(policy, tokenizer, protocol, batch, search, budget=budget)
        scores += [score_of(rollout.question, rollout.trajectory) for rollout in rollouts]
    return scores


def score_of(question: Question, trajectory: Trajectory) -> dict[str, Any]:
    """Return the scores of an episode, with the id and the kind of its question."""
    figures = summary(trajectory)
    return {
        "id": question.id,
        "kind": question.kind,
        "em": exact_match(trajectory.answer, [question.gold]),
        "searches": int(figures["searches"]),
        "format": float(figures["answered"] and not figures["invalid_turns"]),
    }
