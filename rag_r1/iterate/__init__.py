"""`rag-r1 iterate`: trains the agent and its retriever in turn, in rounds (Agentic-R).

- `plan` reads the YAML description of a loop, and `checks` finds its problems before anything is started.
- `steps` defines the steps of all rounds in order, and `commands` builds their command lines.
- `server` makes the retrieval server serve the index of a step.
- `results` reads the metrics of a finished step, and `table` writes the table of rounds.
- `command` runs the steps.
"""
