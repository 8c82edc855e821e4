"""Parts that our HTTP servers for people share: guard of requests, limits of connections, socket, token."""
