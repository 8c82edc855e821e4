"""`rag-r1 retriever data`: makes training data for a retriever from the agent's own searches."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.retriever.data.command")
