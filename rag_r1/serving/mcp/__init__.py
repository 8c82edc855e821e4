"""`rag-r1 mcp`: search and agent as tools for MCP clients."""
