"""`rag-r1 retriever train`: trains a retriever with sentence-transformers."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.retriever.training.trainer")
