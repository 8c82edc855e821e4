"""Plays all probes of a policy for `rag-r1 eval --card`, and computes their figures and the verdict."""
