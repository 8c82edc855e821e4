"""`rag-r1 retriever select`: training rows from scored candidates."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.retriever.selection.rules")
