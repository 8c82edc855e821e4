"""Rule-based traces for format-learning SFT, from the known facts of a world.

A trace is a whole episode, written by a rule: turns of the policy and the observations between them
(writer.py, in the words of turns.py), by one of four strategies (mixes.py).

RAG-R1 splits every trace at its searches and its answer into four kinds of samples: question -> answer,
question -> search, question + information -> search, question + information -> answer. A causal model gets
the same contexts and targets from one sequence whose generated turns carry the loss, so traces are kept whole
(`policy.encode_trace`), and `sample_kinds` says which samples a trace corresponds to. In the warm start only
generated turns are targets, never passages.
"""
