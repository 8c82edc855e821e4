"""The record files below some paths, and how they are read.

- `sources` finds the files and the runs to which they belong.
- `lines` reads the complete lines of a file from a position.
- `file_state` is how far a file has been read, and whether it is still the same.
- `batches` makes rows of the unread lines.
"""
