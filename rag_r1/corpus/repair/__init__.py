"""Repairs a corpus: collects the text of missing pages, and writes the corpus with what is supplied."""
