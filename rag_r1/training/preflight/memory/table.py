"""The table of a memory estimate: components by phases, in GB of 10^9 bytes."""

from __future__ import annotations

from rag_r1.runs.markdown import table
from rag_r1.training.preflight.memory.estimate import MemoryEstimate
from rag_r1.training.preflight.memory.formulas import COMPONENTS


def memory_table(memory: MemoryEstimate) -> str:
    """Return the table in Markdown, with a sentence below it on host memory and on the rows for which vLLM's
    cache has room. On a CPU there is only a sentence on host memory."""
    summary = f"Host memory of a node: {memory.host_bytes / 1e9:.1f} GB."
    if not memory.phases:
        return summary
    components = [part for part in COMPONENTS if any(phase.parts.get(part) for phase in memory.phases)]
    rows = [[part, *(gb(phase.parts.get(part, 0)) for phase in memory.phases)] for part in components]
    rows.append(["all", *(gb(phase.total_bytes) for phase in memory.phases)])
    shares = [f"{phase.total_bytes / memory.gpu_bytes:.0%}" for phase in memory.phases]
    rows.append([f"of {memory.gpu_bytes / 1e9:.0f} GB", *shares])
    header = ["GB on a GPU", *(phase.name for phase in memory.phases)]
    if memory.phase_bytes("generation"):
        contexts = f"{memory.cached_contexts:.0f} rows of {memory.context_tokens:,} tokens"
        summary = f"{contexts} fit into vLLM's cache. {summary}"
    return "\n".join([*table(header, rows), "", summary])


def gb(n_bytes: float, decimals: int = 1) -> str:
    """Return bytes in GB of 10^9 bytes; a dash for 0."""
    return f"{n_bytes / 1e9:.{decimals}f}" if n_bytes else "-"
