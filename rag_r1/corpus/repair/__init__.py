"""Repairs a corpus: collects the text of missing pages, and writes a corpus that contains it."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.corpus.repair.repaired_corpus")
