"""Reads and writes the rows of data sets: questions, samples for fine-tuning, evidence, annotations."""
