"""Converts question data sets to veRL's parquet files."""
