"""Checks keys of veRL that need no knowledge of data, model or machines.

- `validation` veRL's own validation, which it makes when a training starts
- `values`     ranges of numbers, and names that veRL looks up while it trains
"""
