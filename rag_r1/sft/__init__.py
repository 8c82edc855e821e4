"""Supervised fine-tuning: teacher traces, difficulty filter, samples, and the training itself."""

from rag_r1.system.renamed_modules import forwarding_getattr

__getattr__ = forwarding_getattr(__name__, "rag_r1.sft.train_command")
