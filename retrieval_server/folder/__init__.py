"""The index folder on disk: its manifest, its passages and its publication."""
