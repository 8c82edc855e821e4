"""Builds index folders: from a corpus, in parts, from files made elsewhere, or as shards of another index."""
