"""A folder of documents: parsed into passages, and searched by the tool `documents`."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.tools.documents.corpus")
