"""Connects BrowseComp-Plus with this project's agent and retrieval server."""
