"""A folder of documents: parsed into passages, and searched by the tool `documents`."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.tools.documents.corpus")
