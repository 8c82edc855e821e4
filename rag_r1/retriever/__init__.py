"""Agentic-R: trains a retriever to prefer the passages that help the agent answer.

`rag-r1 retriever data` makes the training data (rag_r1/retriever/data/command.py lists its steps),
`rag-r1 retriever select` selects other training rows from recorded scores, and `rag-r1 retriever train`
trains an encoder on the rows (rag_r1/retriever/training/trainer.py). Source: Agentic-R, "Learning to Retrieve
for Agentic Search" (arXiv 2601.11888).
"""
