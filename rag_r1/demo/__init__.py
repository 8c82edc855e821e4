"""The embedded demo: a tiny policy learns to search an invented world, on a laptop."""
