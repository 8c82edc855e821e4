"""`rag-r1 retriever select`: selects training rows from scored candidates."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.retriever.selection.rules")
