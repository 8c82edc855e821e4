"""Texts to vectors: the encoder, its settings and its model folder."""
