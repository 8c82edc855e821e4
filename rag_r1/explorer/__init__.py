"""`rag-r1 view`: trajectories of runs in a browser."""
