"""The corpus doctor: finds the questions that a corpus can answer, and what it lacks."""
