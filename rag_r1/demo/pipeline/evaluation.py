"""Evaluates all models of a pipeline on the same held-out questions.

Each plays every question once with greedy decoding, in plain torch (simulate.py): the turn loop of training,
over an index of the whole corpus in this process, which ranks as the retrieval server does. So the four
models differ in their weights and in nothing else. Of each episode is kept

    em         1 if the answer is an exact match, else 0
    searches   queries that were sent
    format     1 if every turn was a search or an answer and the last one answered, else 0

A model's scores are written when it is finished, so an interrupted evaluation goes on with the next one.
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

SCORES = "scores.json"
#: Questions that are played at the same time, which bounds the memory.
_BATCH = 64

#: The scores of a model, in the order of the questions (`score_of`).
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
    """The scores of each model, by its name, in the order of the questions; they are written to
    scores.json."""
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
    """Play all questions with one model; returns its scores."""
    policy, tokenizer = load_policy(model)
    policy.eval()
    scores: Scores = []
    for start in range(0, len(questions), _BATCH):
        batch = questions[start : start + _BATCH]
        rollouts = run_rollouts(policy, tokenizer, protocol, batch, search, 0.0, budget)
        scores += [score_of(rollout.question, rollout.trajectory) for rollout in rollouts]
    return scores


def score_of(question: Question, trajectory: Trajectory) -> dict[str, Any]:
    """The scores of an episode, with the id and the kind of its question."""
    figures = summary(trajectory)
    return {
        "id": question.id,
        "kind": question.kind,
        "em": exact_match(trajectory.answer, [question.gold]),
        "searches": int(figures["searches"]),
        "format": float(figures["answered"] and not figures["invalid_turns"]),
    }
