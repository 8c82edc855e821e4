"""Chats with a search agent: `rag-r1 serve` (an OpenAI-compatible server with a page) and `rag-r1 chat`.

The server answers each question by playing one episode. It uses the agent core of training and evaluation,
and builds the agent from the same arguments as `rag-r1 eval`. So a chat shows the behaviour that an
evaluation measures.
"""
