"""Experiments built on the package, one in each folder; they are not part of the wheel."""
