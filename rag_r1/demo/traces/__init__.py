"""Rule-based traces for format-learning SFT, written from the known facts of a world.

A trace is a whole episode: turns of the policy, and the observations between them. `writer.py` writes it by
one of the four strategies in `mixes.py`, in the words of `turns.py`.

RAG-R1 splits every trace at its searches and its answer into four kinds of samples: question -> answer,
question -> search, question + information -> search, question + information -> answer. A causal model gets
the same contexts and targets from one sequence in which the loss is on the generated turns. Traces are
therefore kept whole (`policy.encode_trace`), and `sample_kinds` says which samples a trace corresponds to. In
the warm start only generated turns are targets, never passages.
"""
