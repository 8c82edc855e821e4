"""The limits of one tool, which the tool executor applies.

They are declared where tools are made (tools/registry.py) and applied where they are called; so this module
stands below both.
"""

from __future__ import annotations

from rag_r1.options.declare import Count, PositiveCount, PositiveSeconds, options


@options("rag_r1.tools.NAME.limits")
class ToolLimits:
    """The keys under `rag_r1.tools.NAME.limits`. null: what `rag_r1.failures` says for all tools, or, of
    `max_calls`, no limit."""

    #: Seconds that a call may take, its retries inside the tool included, before it counts as failed.
    timeout_s: PositiveSeconds | None = None
    #: How often a call that failed is repeated.
    retries: Count | None = None
    #: Most calls of an episode; those that the tool did not accept do not count.
    max_calls: PositiveCount | None = None
    #: Most results that a process remembers: calls with the same arguments get the same result. 0: none.
    cache_size: Count = 0
