"""Work that can be killed at any time and goes on: run folders, journals, steps, locks, processes.

`errors.py` has the error of all of them. `folder.py` is the folder of a run with its records, `json_lines.py`
an append-only file, `state_file.py` a file from which work goes on, `response_cache.py` the answers of model
servers; `cancel_token.py` ends a run early. `lock.py` keeps two processes out of one folder, `processes.py`
starts commands and ends the processes that a killed start has left behind, `steps.py` skips, resumes and
refuses steps by their markers. `rag-r1 pipeline` and `rag-r1 iterate` use these three; `rag-r1 stages` and
`rag-r1 sft` only the first two: their markers are older, a file `finished` and veRL's checkpoints.
`settings.py` refuses changed settings. `markdown.py` writes the pages of results, `pictures.py` draws their
pictures.
"""
