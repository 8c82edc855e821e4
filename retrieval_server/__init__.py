"""A retrieval server for search agents: one process that answers `POST /retrieve`.

An *index* is a folder that `rag-r1 index build` makes and `rag-r1 index serve` serves. The way of a question:

    HTTP body --> server/wire.py (types) --> server/routes.py --> server/search_service.py (limits, deadline)
                                                                       |
                                                engine/ (queue, batches, cache) in the event loop
                                                                       |
                        search/index_source.py in two threads: prepare (encode), find (search)
                                                                       |
            search/dense.py (with encode/ and FAISS), search/bm25.py, search/lucene.py or search/hybrid.py
                                                                       |   row numbers and scores
                                      folder/passages.py (memory-mapped text) --> documents

An index is one of two kinds of source (`source.py`). The other kind is a web search engine (`web/`): the
engine sends it each query on its own, from the event loop.

A server holds several sources, each under its name (`server/indexes.py`), and can replace one while it is
served (`server/reload.py`). An index can be split into *shards* (`indexing/split_index.py`) and searched
on several machines (`cluster/`).

Packages, each of which imports only those that stand below it (`pyproject.toml`, checked by
`lint-imports`):

    serve                        `rag-r1 index serve`: options, checks, app, process
    server | indexing            the HTTP service | builds index folders
    engine | cluster | web       queue and batches | Ray Serve | web search engines
    search                       back ends: dense, BM25, Lucene, hybrid; reranking
    encode                       encoders; beside it `source.py`, what the engine can search
    folder                       an index on disk
    determinism.py, extras.py, errors.py

Options are declared where they are read (the modules `options` of several packages); `serve/options.py`
and `build_options.py` put them together, and `command_line.py` makes flags of them. `commands.py` has
the commands by name. Only base dependencies are imported before a command knows what it needs; `extras.py`
names what is missing. The server knows nothing of the trainer, only the wire format.
"""
