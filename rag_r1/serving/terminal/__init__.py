"""`rag-r1 chat`: chats with a search agent in a terminal."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.serving.terminal.command")
