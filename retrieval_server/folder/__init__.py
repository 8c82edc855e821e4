"""An index on disk: its manifest, its text, the corpus that it is made from, and how it is published."""
