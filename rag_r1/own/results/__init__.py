"""What a finished run of `rag-r1 own` shows: the report (report.py) and its picture (picture.py)."""
