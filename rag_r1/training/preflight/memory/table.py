"""The table of a memory estimate: components by phases, in GB of 10^9 bytes."""

from __future__ import annotations

from rag_r1.runs.markdown import table
from rag_r1.training.preflight.memory.estimate import MemoryEstimate
from rag_r1.training.preflight.memory.formulas import COMPONENTS


def memory_table(memory: MemoryEstimate) -> str:
    """As Markdown, with a sentence below it on the rows of vLLM's cache and on host memory."""
    host = f"Host memory of a node: {memory.host / 1e9:.1f} GB."
    if not memory.phases:
        return host
    components = [part for part in COMPONENTS if any(phase.parts.get(part) for phase in memory.phases)]
    rows = [[part, *(_gb(phase.parts.get(part, 0)) for phase in memory.phases)] for part in components]
    rows.append(["all", *(_gb(phase.bytes) for phase in memory.phases)])
    rows.append(
        [f"of {memory.gpu / 1e9:.0f} GB", *(f"{phase.bytes / memory.gpu:.0%}" for phase in memory.phases)]
    )
    header = ["GB on a GPU", *(phase.name for phase in memory.phases)]
    if memory.bytes_of("generation"):
        host = f"{memory.rows:.0f} rows of {memory.row:,} tokens fit into vLLM's cache. {host}"
    return "\n".join([*table(header, rows), "", host])


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}" if size else "-"
