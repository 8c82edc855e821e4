"""A retrieval server for search agents: one process that answers `POST /retrieve`.

An *index* is a folder that `rag-r1 index build` makes and `rag-r1 index serve` serves. A query takes this
path:

    HTTP body --> server/wire.py (types) --> server/routes.py --> server/search_service.py (limits, deadline)
                                                                       |
                                                engine/ (queue, batches, cache) in the event loop
                                                                       |
                        search/index_source.py in two threads: prepare (encode), find (search)
                                                                       |
            search/dense.py (with encode/ and FAISS), search/bm25.py, search/lucene.py or search/hybrid.py
                                                                       |   row numbers and scores
                                      folder/passages.py (memory-mapped text) --> documents

An index is one of two kinds of source (`source.py`). The other kind is a web search engine (`web/`), to which
the engine sends each query separately, from the event loop.

A server has several sources, each under a name (`server/indexes.py`), and can replace one while it is served
(`server/reload.py`). An index can be split into *shards* (`indexing/split_index.py`) and searched on several
machines (`cluster/`).

Each package imports only packages below it in this list (`pyproject.toml`, checked by `lint-imports`):

    serve                        `rag-r1 index serve`: options, checks, app, process
    server | indexing            the HTTP service | builds index folders
    engine | cluster | web       queue and batches | Ray Serve | web search engines
    search                       back ends: dense, BM25, Lucene, hybrid; reranking
    encode                       encoders; on the same level `source.py`, the interface of sources
    folder                       an index on disk
    determinism.py, extras.py, json_kind.py, json_limits.py, command_line.py
    errors.py, options.py

Options are declared in the packages that read them, in modules named `options`. `serve/options.py` and
`build_options.py` combine them, and `command_line.py` turns them into flags. `commands.py` lists the
commands. Only base dependencies are imported before a command knows what it needs; `extras.py` then names the
packages that are missing. The server does not depend on the trainer; they share only the wire format.
"""
