"""The golden tables, and what this project gives for each of their columns.

A table holds inputs and what the released code of Search-R1, R1-Searcher or RAG-R1 made of them; its folder
is `golden` in $RAG_R1_DATA, whose README tells how the tables were made. `TABLES` names, for every table, the
published value and ours of each column that is compared. Rewards are computed from a Trajectory that is built
by parsing the case's turns; queries and observations come from the Protocol.

    python -m tests.golden.golden_tables        # how many cases agree, and why the others do not
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Answer, Document, Invalid, Search, load_protocol
from rag_r1.rewards import RewardSum, cover_exact_match, exact_match, token_f1

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RAG_R1_DATA") or ROOT.parent / "shared" / "data") / "golden"

Case = dict[str, Any]
protocol = cache(load_protocol)


@dataclass(frozen=True)
class Column:
    """How one column of a table is compared: the published value of a case, and ours."""

    published: Callable[[Case], Any]
    ours: Callable[[Case], Any]

    def agrees(self, case: Case) -> bool:
        """Are both values the same, numbers within 1e-9? Yes where the published code took no such case."""
        published, ours = self.published(case), self.ours(case)
        if isinstance(published, float):
            return abs(published - ours) <= 1e-9
        return published == ours


def read_table(name: str) -> list[Case]:
    """The cases of a table. Raises FileNotFoundError."""
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def differing(name: str, case: Case) -> set[str]:
    """The columns in which a case does not agree."""
    return {column for column, compared in TABLES[name].items() if not compared.agrees(case)}


def documents_of(documents: list[dict[str, str]]) -> list[Document]:
    """The documents of a case as the agent core holds them."""
    return [Document(str(i), document["contents"]) for i, document in enumerate(documents)]


def played(dialect: str, case: Case) -> Trajectory:
    """The record of a case's turns, up to the first that is an answer: what the policy wrote is parsed, and a
    search that was carried out has its documents. Invalid turns stand in it as the agent core leaves them."""
    record = Trajectory("golden", "?", dialect)
    *earlier, last = case["turns"]
    for turn in (*earlier, last):
        action = protocol(dialect).parse(turn["text"])
        record.turns.append(Turn(turn["text"], action.kind))
        if isinstance(action, Search) and turn is not last:
            documents = [documents_of(turn["documents"])] + [[]] * (len(action.queries) - 1)
            record.turns[-1] = Turn.searched(turn["text"], action.queries, documents)
        if isinstance(action, Answer):
            record.answer, record.status = action.text, "answered"
            break
    return record


def observations(dialect: str, case: Case) -> list[str]:
    """What our environment puts behind each turn of a case: documents, the hint, or nothing."""
    observed = []
    for turn in case["turns"][:-1]:
        action = protocol(dialect).parse(turn["text"])
        if isinstance(action, Answer):
            break
        if isinstance(action, Invalid):
            observed.append(protocol(dialect).invalid_hint or "")
        else:
            observed.append(protocol(dialect).observation(action.queries, [documents_of(turn["documents"])]))
    return [*observed, ""]


def _observed(dialect: str) -> dict[str, Column]:
    return {
        "observations": Column(
            lambda case: [turn["observation"] for turn in case["turns"]],
            lambda case: observations(dialect, case),
        )
    }


@cache
def search_r1_reward(**term: Any) -> RewardSum:
    """The reward of one term alone."""
    return RewardSum.from_config([term], protocol("search_r1"))


@cache
def recipe_reward(name: str) -> RewardSum:
    """The reward of R1-Searcher's recipe of that name."""
    path = ROOT / "recipes" / "r1_searcher" / "reward" / f"{name}.yaml"
    return RewardSum.from_config(yaml.safe_load(path.read_text(encoding="utf-8"))["rag_r1"]["reward"])


def _scored(column: str, dialect: str, reward: Callable[[], RewardSum]) -> dict[str, Column]:
    """A score. A null in the table says that the published server could not take the case."""

    def ours(case: Case) -> float | None:
        if case[column] is None:
            return None
        return reward()(played(dialect, case), case["golds"])["score"]

    return {column: Column(lambda case: case[column], ours)}


def _metric(column: str, metric: Callable[..., float]) -> dict[str, Column]:
    def ours(case: Case) -> float:
        return metric(case["prediction"], case["golds"], normaliser="r1_searcher")

    return {column: Column(lambda case: case[column], ours)}


def _observation(dialect: Callable[[Case], str]) -> dict[str, Column]:
    def ours(case: Case) -> str:
        results = [documents_of(documents) for documents in case["documents"]]
        return protocol(dialect(case)).observation(case["queries"], results)

    return {"observation": Column(lambda case: case["observation"], ours)}


def rag_r1_action(case: Case) -> Search | Answer | Invalid:
    """What our parser makes of a response in RAG-R1's dialect."""
    return protocol(f"rag_r1_{case['mode']}").parse(case["response"])


def _queries(case: Case) -> list[str]:
    action = rag_r1_action(case)
    return list(action.queries) if isinstance(action, Search) else []


def _answer(case: Case) -> str | None:
    action = rag_r1_action(case)
    return action.text if isinstance(action, Answer) else None


def _action(case: Case) -> str | None:
    action = rag_r1_action(case)
    return None if isinstance(action, Invalid) else action.kind


TABLES: dict[str, dict[str, Column]] = {
    "search_r1_em": {
        **_scored("em", "search_r1", lambda: search_r1_reward(term="em")),
        **_observed("search_r1"),
    },
    "search_r1_format": {
        **_scored("score", "search_r1", lambda: search_r1_reward(term="search_r1_format")),
        **_scored(
            "score_retrieval", "search_r1", lambda: search_r1_reward(term="search_r1_format", retrieval=0.1)
        ),
        **_observed("search_r1"),
    },
    "search_r1_observation": _observation(lambda case: "search_r1"),
    "r1_searcher_rewards": {
        **_scored("stage1_llama", "r1_searcher", lambda: recipe_reward("llama_stage1")),
        **_scored("stage2_llama", "r1_searcher", lambda: recipe_reward("llama_stage2")),
        **_scored("qwen_zero", "r1_searcher", lambda: recipe_reward("qwen_zero")),
        **_observed("r1_searcher"),
    },
    "r1_searcher_cover_em": {
        **_metric("em", exact_match),
        **_metric("cover_em", cover_exact_match),
        **_metric("f1", token_f1),
    },
    "r1_searcher_observation": _observation(lambda case: "r1_searcher"),
    "rag_r1_observation": _observation(lambda case: f"rag_r1_{case['mode']}"),
    "rag_r1_queries": {
        "action": Column(lambda case: case["action"], _action),
        "answer": Column(lambda case: case["content"] if case["action"] == "answer" else None, _answer),
        "queries": Column(lambda case: case["queries"], _queries),
    },
}


def report() -> Iterator[str]:
    """Lines for people: agreeing cases by column, then the cases of each difference."""
    from tests.golden.differences import explaining

    for name, columns in TABLES.items():
        cases = read_table(name)
        for column, compared in columns.items():
            left_out = sum(compared.published(case) is None and column != "action" for case in cases)
            taken = len(cases) - (left_out if name == "r1_searcher_rewards" else 0)
            unequal = sum(column in differing(name, case) for case in cases)
            yield f"{name} {column}: {taken - unequal} of {taken} agree"
        reasons: dict[str, int] = {}
        for case in cases:
            if differing(name, case):
                key = " + ".join(difference.name for difference in explaining(name, case)) or "UNEXPLAINED"
                reasons[key] = reasons.get(key, 0) + 1
        yield from (f"    {count} {key}" for key, count in sorted(reasons.items()))


if __name__ == "__main__":
    print("\n".join(report()))
