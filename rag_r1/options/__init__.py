"""Options and command lines, declared once with type, limits and default; also problems and import paths."""

from rag_r1.system.renamed_modules import forwarding_getattr

#: In earlier versions one module had the name of this package, and the names of these.
_HOMES = ("rag_r1.options.declare", "rag_r1.options.from_config", "rag_r1.options.types")
__getattr__ = forwarding_getattr(__name__, *_HOMES)
