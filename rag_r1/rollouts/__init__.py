"""Plays many episodes outside training: requests, sessions, the runner, engines and provenance."""
