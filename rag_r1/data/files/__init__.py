"""Readers of question files, whatever their format, and the writer of veRL's parquet."""
