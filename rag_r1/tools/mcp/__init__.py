"""Tools of MCP servers: connections, streams, limits."""
