"""What `rag-r1 index serve` does: its options, the checks before the start, the app, and the process."""
