"""The corpus doctor: which questions can be answered from a corpus, and what is missing in it."""
