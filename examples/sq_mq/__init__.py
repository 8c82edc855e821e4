"""RAG-R1's claim in miniature: several queries in a turn, compared with one."""
