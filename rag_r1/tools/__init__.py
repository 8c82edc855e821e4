"""The tools that the policy can call.

`config.py` explains how tools are configured and how to add your own, `function_tool.py` makes a tool from a
function, and `registry.py` creates the tools of a run. `retrieval/client.py` is the client of the retrieval
server.
"""

from rag_r1.tools.function_tool import FunctionTool, Searcher, SearcherTool, search_tools, tool
from rag_r1.tools.registry import (
    close_tools,
    make_searcher,
    make_tool,
    schemas,
    shared_searcher,
    shared_tools,
)
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

__all__ = [
    "FunctionTool",
    "RetrievalClient",
    "RetrieverConfig",
    "Searcher",
    "SearcherTool",
    "close_tools",
    "make_searcher",
    "make_tool",
    "schemas",
    "search_tools",
    "shared_searcher",
    "shared_tools",
    "tool",
]
