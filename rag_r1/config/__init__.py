"""The configuration block `rag_r1:`, the recipes that set it, and the agent setup that is built from it."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.config.schema")
