"""The embedded demo: an invented world and a tiny policy that learns to search it, on a laptop."""
