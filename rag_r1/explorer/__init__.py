"""`rag-r1 view` shows the trajectories of runs in a browser; `rag-r1 runs` lists runs on the terminal.

`sources.py` finds the record files, `lines.py` and `rows.py` read them, and `store.py` keeps them in a cache
(`cache.py`, `texts.py`). `app.py` is the HTTP app, whose answers come from `queries.py`, `charts.py` and
`trajectory.py`. `page/` has the files of the page, and `runs/` is `rag-r1 runs`.
"""
