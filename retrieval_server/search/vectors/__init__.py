"""Search in vectors: FAISS indexes, exact search, GPUs, and rows in memory-mapped files."""
