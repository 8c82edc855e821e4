"""`rag-r1 pipeline`: every step of RAG-R1 in miniature, from an untrained model to a report.

steps.py says what the steps do, rag_r1/runs/steps.py how they are skipped, resumed and refused,
rag_r1/runs/processes.py how everything that was started is ended, evaluation.py and report.py what is
measured and told, command.py reads the arguments.
"""
