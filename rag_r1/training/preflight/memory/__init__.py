"""The memory of a training, estimated before it starts.

- `shape`     the sizes of a decoder: of the public models, or from a config.json
- `formulas`  the components, their sources, and which constants were fitted on the one measured run
- `estimate`  what a composed recipe needs in each phase
- `table`     the table that `rag-r1 train --check-only` and `rag-r1 recipes table` print
- `check`     the preflight's warnings, for the GPU that a recipe names or this machine has
"""
