"""Agentic-R: trains a retriever on what helps the agent.

`rag-r1 retriever data` makes the training data (rag_r1/retriever/data/command.py lists the steps),
`rag-r1 retriever select` selects again from recorded scores, and `rag-r1 retriever train` trains on them
(rag_r1/retriever/training/trainer.py). Source: Agentic-R, "Learning to Retrieve for Agentic Search" (arXiv
2601.11888).
"""
