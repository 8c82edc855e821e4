"""Estimates the memory of a training before it starts.

- `shape`     the sizes of a decoder, of a public model or from a config.json
- `formulas`  the formula of each component with its source, and the constants that were fitted to a measured
  run
- `estimate`  the memory that a composed recipe needs in each phase of a step
- `table`     the table that `rag-r1 train --check-only` and `rag-r1 recipes table` print
- `check`     the preflight's warnings, for the GPU that the recipe names or that this machine has
"""
