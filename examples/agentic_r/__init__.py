"""Agentic-R in miniature: agent and retriever are trained in turn, on one machine with two cores."""
