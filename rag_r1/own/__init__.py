"""`rag-r1 own`: from a folder of documents to an agent that was trained on them.

plan.py declares the settings of a run, and plan_file.py reads and writes them. sizes.py chooses the recipes
by the size of the model, checks.py finds problems before the run, and forecast.py estimates requests, cost
and time. The steps are in data_steps.py, questions_step.py, training_steps.py and evaluation_steps.py;
artifacts.py has the paths of their files, and episodes.py the limits of the agent. results/ writes the
report, and chat.py prints the command that chats with the agent. arguments.py declares the arguments of the
command, and command.py runs the steps.
"""
