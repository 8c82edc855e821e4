"""`rag-r1 own`: from a folder of documents to an agent that was trained on it.

plan.py declares the plan, and plan_file.py reads and writes it; sizes.py chooses the recipes by the size of
the model; checks.py finds what is wrong before anything starts, and forecast.py estimates requests, cost and
time. The steps are in data_steps.py, questions_step.py, training_steps.py and evaluation_steps.py;
artifacts.py knows their folders, and episodes.py the agent's limits. report.py and picture.py write the
results, chat.py names the command that chats with the agent, and command.py reads the arguments."""
