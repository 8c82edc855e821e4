"""Resumable work in steps, each a command or a training.

rag_r1/runs/lock.py keeps two processes out of one folder, rag_r1/runs/processes.py starts commands and ends what a killed start has
left behind, rag_r1/runs/steps.py skips, resumes and refuses steps by their markers. `rag-r1 pipeline` and
`rag-r1 iterate` use all three. `rag-r1 stages` and `rag-r1 sft` use the first two: their markers are older, a
file `finished` and veRL's checkpoints.
"""
