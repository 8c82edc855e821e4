"""The shipped reward terms; importing this package registers them."""

# Importing a module registers its terms.
from rag_r1.rewards.terms import agentic_rag, answer, choice, judged, r1_searcher, search_r1  # noqa: F401
from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.rewards.terms.answer")
