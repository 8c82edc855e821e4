"""`rag-r1 pipeline`: every step of RAG-R1 in miniature, from an untrained model to a report.

arguments.py and command.py have the command, and steps.py defines the steps, which rag_r1/runs/steps.py skips
when they are finished and resumes otherwise. pretrain.py makes the base model, teacher.py stands in for a
large model, and limits.py has the limits of the episodes. evaluation.py measures all models, and report.py
and picture.py present the results.
"""
