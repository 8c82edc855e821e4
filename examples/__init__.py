"""Experiments on top of the package, each a folder of its own; not part of the wheel."""
