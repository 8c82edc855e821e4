"""Probes: the same agent with another search, to see whether it searches or already knows."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.probes.probes")
