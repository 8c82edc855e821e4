"""Builds index folders: from a corpus, in parts, from imported files, or as shards of another index."""
