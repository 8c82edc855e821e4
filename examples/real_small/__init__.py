"""A real language model of 135 million parameters learns to search real passages; see README.md."""
