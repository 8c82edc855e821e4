"""`rag-r1 runs`: which runs lie below a folder."""
