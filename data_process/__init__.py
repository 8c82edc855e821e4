"""Converts questions to veRL parquet: `rag-r1 data` (build.py) from any of the sources in `sources/`, and a
thin script, on top of `command.py`, for each of the published sets."""
