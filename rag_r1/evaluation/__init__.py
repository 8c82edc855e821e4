"""Evaluates policies on questions: `rag-r1 eval` with its conditions, judge, probes and reports."""
