"""Checks a corpus: finds which questions it can answer, and which passages it lacks."""
