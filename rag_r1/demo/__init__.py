"""The embedded demo, in which a tiny policy learns on a laptop to search an invented world.

`world/` has the facts, the questions and the files of the world, and `traces/` writes example episodes by
rule. `warm_start.py` makes the committed policies, `run.py` is `rag-r1 demo`, and `pipeline/` is
`rag-r1 pipeline`, which runs all steps of RAG-R1 in miniature.
"""
