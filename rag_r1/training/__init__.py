"""`rag-r1 train` and what belongs to it: preflight, stages, recipes, doctor."""
