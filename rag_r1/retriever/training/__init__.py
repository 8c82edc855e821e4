"""`rag-r1 retriever train`: trains a retriever with sentence-transformers."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.retriever.training.trainer")
