"""The command `rag-r1 index serve`: its options, the checks before the start, the app and the process."""
