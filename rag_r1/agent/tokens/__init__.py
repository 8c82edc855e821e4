"""Tokens of a trajectory: the ledger, and codecs that encode and decode text."""
