"""Probes: the same agent with another search, to see whether it searches or already knows."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.probes.probes")
