"""`rag-r1 iterate`: trains the agent and its retriever in turn (Agentic-R).

plan.py reads the YAML that describes a loop, checks.py finds what is wrong with it before anything is
started, commands.py builds the command of a step, steps.py puts the steps of all rounds in order, server.py
makes the retrieval server serve the index of a step, results.py reads what a step has measured, table.py
writes the table of rounds, and command.py runs the steps.
"""
