"""`rag-r1 mcp`: offers the search and the agent as tools to MCP clients."""
