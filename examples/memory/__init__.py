"""The memory in miniature."""
