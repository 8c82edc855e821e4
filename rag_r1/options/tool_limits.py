"""The limits of a single tool, which the tool executor applies.

The limits are read where tools are configured (tools/config.py) and applied where they are called
(agent/tool_executor.py). This module is separate so that both can import it.
"""

from __future__ import annotations

from rag_r1.options.declare import options
from rag_r1.options.types import Count, PositiveCount, PositiveSeconds


@options("rag_r1.tools.NAME.limits")
class ToolLimits:
    """The keys under `rag_r1.tools.NAME.limits`. A null selects the value in `rag_r1.failures`, which applies
    to all tools; for `max_calls` it means no limit."""

    #: Seconds after which a call counts as failed, including retries inside the tool.
    timeout_s: PositiveSeconds | None = None
    #: How often a failed call is repeated.
    retries: Count | None = None
    #: Most calls in an episode. Calls that the tool did not accept do not count.
    max_calls: PositiveCount | None = None
    #: Most results that a process caches, so that a repeated call gets the same result. 0 disables the cache.
    cache_size: Count = 0
