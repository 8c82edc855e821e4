"""Tests, in folders that mirror those of the code. What stands in for a model or a server is in `fakes`.

A regular package, since some distributions install a package `tests` beside their own, which would hide ours.
"""
