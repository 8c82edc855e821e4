"""Makes questions from the passages of an encyclopedia by rules, without a model.

`facts.py` and `kinds.py` read facts from passages, `entities.py` names and links their subjects,
`questions.py` writes the questions, `ambiguity.py` drops those with two right answers, and `command.py` draws
and writes a set.
"""
