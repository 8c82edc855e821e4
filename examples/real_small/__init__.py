"""Trains a real language model of 135 million parameters to search real passages; see README.md."""
