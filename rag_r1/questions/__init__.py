"""Questions written from one's own corpus by a model, and believed only after they have been verified.

`documents.py` reads the corpus, `links.py` and `seeds.py` choose the passages of each question, `prompts.py`
makes the requests, and `models.py` sends them to the teacher, who writes, and to the reader, who verifies.
`rules.py` has the checks without a model, `readings.py` those of the reader, both pure functions. `run.py`
puts them together in a folder that survives kills; `rows.py` and `card.py` write what it ends with.
"""
