"""Supervised fine-tuning: teacher traces, difficulty filter, samples, and the training itself."""

from rag_r1.system.renamed_modules import forward

__getattr__ = forward(__name__, "rag_r1.sft.train_command")
