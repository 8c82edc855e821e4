"""Converts question files to veRL parquet: one thin script for each source, on top of `command.py`."""
