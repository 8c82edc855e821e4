"""A retrieval server for search agents: one process that answers ``POST /retrieve``.

An *index* is a folder that ``build_index.py`` makes and ``start_retrieval.py`` serves. How a question
travels:

    HTTP body --> wire.py (types) --> app.py --> service.py (limits, deadline) --> engine.py (batches, cache)
                                                                                           |
                                        retriever.py in two threads: prepare (encode), find (search)
                                                                                           |
      backends.py: dense.py (encoder.py + FAISS), bm25.py, lucene.py or hybrid.py --> row numbers and scores
                                                                                           |
                                            passages.py (memory-mapped text) --> documents

An index is one of two kinds of source (``sources.py``). The other, a web search engine (``web/``), is asked
by the engine in the event loop, each query on its own.

One server holds several, each under its name (``indexes.py``), and exchanges one while it is served
(``reload.py``). An index can be split (``split.py``) and searched on several machines (``ray_serve.py``).

``batching.py`` decides when which batch runs; it knows no threads and no clock. ``manifest.py`` says what an
index folder holds and refuses one that does not fit; ``builder.py`` makes it from the passages that
``corpus.py`` reads. The package stands alone: it knows nothing of the trainer, only the wire format.
"""
