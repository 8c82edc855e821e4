"""The common parts of the HTTP servers for people: request guard, connection limits, socket and token."""
