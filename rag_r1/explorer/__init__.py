"""`rag-r1 view` and `rag-r1 runs`: what runs have left, in a browser and on the terminal."""
