"""Options and command lines, declared once with type, limits and default; also problems and import paths."""

from rag_r1.system.renamed_modules import forwarding_getattr

#: declare.py had the name of this package in earlier versions.
__getattr__ = forwarding_getattr(__name__, "rag_r1.options.declare")
