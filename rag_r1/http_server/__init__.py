"""The common parts of the chat server and the explorer: errors, request guard, limits, socket, token."""
