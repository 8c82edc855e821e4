"""`rag-r1 runs`: finds the runs below a folder (`facts.py`), and lists them (`command.py`)."""
