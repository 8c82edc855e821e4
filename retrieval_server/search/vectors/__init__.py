"""Search in vectors: FAISS, exact search, rows in memory-mapped files."""
