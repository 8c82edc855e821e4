"""The files of a run: the questions without duplicates, the refused drafts, and the data card."""
