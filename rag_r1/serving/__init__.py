"""Chat with a search agent: an OpenAI-compatible server with a page (`rag-r1 serve`) and a terminal
(`rag-r1 chat`).

The server answers each question with one episode of the same agent core that is trained and evaluated, made
from the same arguments as `rag-r1 eval`, so it answers what an evaluation measures.
"""
