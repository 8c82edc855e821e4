"""`rag-r1 iterate`: trains the agent and its retriever in turn (Agentic-R).

plan.py reads the YAML that describes a loop, checks.py finds what is wrong with it before anything is
started, commands.py builds the command of a step, steps.py puts the steps of all rounds in order, server.py
sees to it that the retrieval server serves the index of a step, table.py has the results, and
command.py takes the steps.
"""
