"""Question sets that a model writes from the user's own corpus, and that are verified before they are used.

`passages/documents.py` reads the corpus, and `passages/links.py` and `seeds.py` choose the passages of each
question. `prompts.py` makes the requests, and `models.py` sends them to two models: the teacher writes a
question, and the reader verifies it. `rules.py` has the checks that need no model, and `readings.py`
interprets the reader's answers; both consist of pure functions. `run.py` runs all phases in a folder, so that
an interrupted run can be resumed, and `results/` writes the questions and their card.
"""
