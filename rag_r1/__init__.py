"""RAG-R1 trains a language model to search: an extension of veRL. The README describes the packages."""

__version__ = "0.1.0"

from rag_r1.system import renamed_modules

renamed_modules.install()
