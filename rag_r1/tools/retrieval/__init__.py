"""The client of the retrieval server, and a server that runs only for the length of a command."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.tools.retrieval.client")
