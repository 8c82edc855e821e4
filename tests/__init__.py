"""Tests, in folders that mirror those of the code. What stands in for a model or a server is in `fakes`."""
