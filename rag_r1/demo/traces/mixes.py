"""The strategies of traces, and the shares in which a set of traces mixes them.

    guess       answer at once, with a random name of the right type
    early       answer after the first search, whatever it returned
    sequential  one query a turn until every fact is found
    parallel    the queries of two independent facts in one turn (needs a protocol with max_queries > 1); for
                facts that depend on each other as `sequential`

A mix gives the shares for each kind of question. The warm start mixes right and wrong traces, so that it
teaches the format and not what to do.
"""

from __future__ import annotations

import random
from typing import Literal

from rag_r1.demo.world import INDEPENDENT, KINDS

Strategy = Literal["guess", "early", "sequential", "parallel"]
#: Kind of question -> strategy -> share of the traces.
Mix = dict[str, dict[Strategy, float]]

#: Protocol -> mix of traces in which every fact is found, in as few turns as possible.
GOLD: dict[str, Mix] = {
    "rag_r1_sq": {kind: {"sequential": 1.0} for kind in KINDS},
    "rag_r1_mq": {kind: {"parallel" if kind in INDEPENDENT else "sequential": 1.0} for kind in KINDS},
}
#: Protocol -> mix of traces in which every fact is found, in all ways that work.
FULL: dict[str, Mix] = {
    "rag_r1_sq": GOLD["rag_r1_sq"],
    "rag_r1_mq": GOLD["rag_r1_mq"] | {kind: {"parallel": 0.7, "sequential": 0.3} for kind in INDEPENDENT},
}
#: Protocol -> mix of the warm start, whose traces often fail to find every fact.
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
    """A random strategy, drawn according to the shares in `mix`."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]
