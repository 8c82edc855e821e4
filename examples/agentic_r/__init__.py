"""Agentic-R in miniature."""
