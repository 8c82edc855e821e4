"""`rag-r1 own`: from a folder of documents to an agent that was trained on it.

plan.py declares what is done and plan_file.py reads and writes it; sizes.py has the recipes for a model's
size; checks.py finds what is wrong before anything starts, and forecast.py says what it will take. The steps
are in data_steps.py, questions_step.py, training_steps.py and evaluation_steps.py, with their places in
artifacts.py and the agent's limits in episodes.py. report.py and picture.py tell what came of them, chat.py
names the command that chats with the result, and command.py reads the arguments.
"""
