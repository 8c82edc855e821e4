"""Options and command lines: declared once with type, limits and default; problems and import paths."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.options.declare")
