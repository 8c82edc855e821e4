"""Converts question data sets to veRL's parquet files.

`build.py` is `rag-r1 data`, which mixes several sources; the scripts on `command.py` convert single data
sets.
"""
