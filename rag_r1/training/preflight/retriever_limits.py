"""Checks that the agent loops stay within the retrieval server's limits.

Our server reports its limits in `GET /health` (`limits`: max_queue, deadline_s, max_queries, max_topk). It
refuses a request that exceeds them. A batch of several turns is then split, and a full queue is tried again;
if a search still fails, its trajectory is masked. Servers that report no limits are not checked.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, warning
from rag_r1.tools.retrieval.options import RetrieverConfig

_KEY = "rag_r1.retriever"


def limits_in(health: Any) -> dict[str, float] | None:
    """Return the limits in an answer of `GET /health`, as far as they are finite numbers from 0 on; None if
    it has none."""
    limits = health.get("limits") if isinstance(health, Mapping) else None
    if not isinstance(limits, Mapping):
        return None
    numbers = {
        str(name): float(value)
        for name, value in limits.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    }
    return numbers or None


def check_limits(
    config: DictConfig, settings: RetrieverConfig, limits: Mapping[str, float]
) -> Iterator[Problem]:
    """Check that the queries in flight, the queries in a request and the time-out are within the server's
    limits."""
    workers = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.num_workers")
    workers = workers if isinstance(workers, int) and workers > 0 else 1  # others are reported elsewhere
    limits = {name: value if name == "deadline_s" else math.floor(value) for name, value in limits.items()}
    total = workers * settings.max_connections * settings.max_queries
    if total > (limit := limits.get("max_queue", math.inf)):
        text = (
            f"{workers} agent workers x {settings.max_connections} connections x {settings.max_queries}"
            f" queries a request are up to {total} at once, but the server takes {limit} and refuses more"
        )
        connections = int(limit // (workers * settings.max_queries))
        lower = f"set it to at most {connections}, or " if connections else ""
        remedy = f"{lower}start the server with --max-queue {total}"
        yield warning(f"{_KEY}.max_connections", text, remedy)
    if settings.max_queries > (limit := limits.get("max_queries", math.inf)):
        text = f"is {settings.max_queries}, but the server takes {limit} queries in a request"
        yield warning(f"{_KEY}.max_queries", text, f"set it to at most {limit}")
    if settings.timeout_s < (deadline := limits.get("deadline_s", 0.0)):
        text = (
            f"is {settings.timeout_s:g} s, but the server answers within {deadline:.10g} s: searches on which"
            " it still works are sent again"
        )
        remedy = (
            f"set it to at least {deadline:.10g}, or start the server with --deadline {settings.timeout_s:g}"
        )
        yield warning(f"{_KEY}.timeout_s", text, remedy)
