"""`rag-r1 view` shows the trajectories of runs in a browser; `rag-r1 runs` lists runs on the terminal.

`record_files/` finds and reads the record files, `rows.py` makes rows of their lines, and `store.py` keeps
these in a cache (`cache.py`, `texts.py`) with the tables of `schema.py`. `app.py` is the HTTP app, whose
answers come from `queries.py`, `charts.py` and `trajectory.py`. `page/` has the files of the page, and
`runs/` is `rag-r1 runs`.
"""
