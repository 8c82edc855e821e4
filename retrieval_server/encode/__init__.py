"""Encoders, which convert texts to vectors: model folders, settings, runtimes and files of vectors."""
