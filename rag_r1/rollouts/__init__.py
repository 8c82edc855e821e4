"""Many episodes outside training: requests, sessions, runner, engines, provenance."""
