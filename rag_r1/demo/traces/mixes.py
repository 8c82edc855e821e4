"""Defines the strategies of traces, and the mixes of strategies in the training sets.

    guess       answers at once, with a random name of the right type
    early       answers after the first search, whatever it has returned
    sequential  sends one query in each turn until every fact is found
    parallel    sends the queries for two independent facts in one turn, which needs a protocol with
                max_queries > 1; for facts that depend on each other it is the same as `sequential`

A mix has the share of each strategy for each kind of question. The warm start mixes right and wrong traces,
so that it teaches the format without teaching what to do.
"""

from __future__ import annotations

import random
from typing import Literal

from rag_r1.demo.world import INDEPENDENT, KINDS

Strategy = Literal["guess", "early", "sequential", "parallel"]
#: Maps each kind of question to the share of each strategy.
Mix = dict[str, dict[Strategy, float]]

# Each of the following has a mix for each protocol.
#: Every fact is found, in as few turns as possible.
GOLD: dict[str, Mix] = {
    "rag_r1_sq": {kind: {"sequential": 1.0} for kind in KINDS},
    "rag_r1_mq": {kind: {"parallel" if kind in INDEPENDENT else "sequential": 1.0} for kind in KINDS},
}
#: Every fact is found, in all ways that work.
FULL: dict[str, Mix] = {
    "rag_r1_sq": GOLD["rag_r1_sq"],
    "rag_r1_mq": GOLD["rag_r1_mq"] | {kind: {"parallel": 0.7, "sequential": 0.3} for kind in INDEPENDENT},
}
#: The mix of the warm start, in which many traces do not find every fact.
MIXED: dict[str, Mix] = {
    "rag_r1_sq": {
        "one_hop": {"guess": 0.35, "sequential": 0.65},
        "bridge": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "comparison": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "both": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
    },
    "rag_r1_mq": {
        "one_hop": {"guess": 0.35, "sequential": 0.65},
        "bridge": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "comparison": {"guess": 0.25, "early": 0.35, "sequential": 0.15, "parallel": 0.25},
        "both": {"guess": 0.25, "early": 0.35, "sequential": 0.15, "parallel": 0.25},
    },
}


def draw_strategy(mix: dict[Strategy, float], rng: random.Random) -> Strategy:
    """Draw a strategy according to the shares in `mix`."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]
