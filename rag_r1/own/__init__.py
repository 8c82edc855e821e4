"""`rag-r1 own`: from a folder of documents to an agent that was trained on it.

plan.py declares what is done and plan_file.py reads and writes it; sizes.py has the recipes for a model's
size; checks.py finds what is wrong before anything starts, and forecast.py says what it will take.
data_steps.py, training_steps.py and evaluation_steps.py are the steps, in the places of artifacts.py and with
the episodes of episodes.py; report.py and picture.py tell what came of them, command.py reads the arguments.
"""
