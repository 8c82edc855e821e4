"""Encoders: from texts to vectors."""
