"""Web search engines as sources, behind the same wire format as an index.

    WebSource (source.py) --> Recording (recordings.py): is the answer recorded?
                          --> WebClient (client.py): sends, waits and retries (retry.py, circuit_breaker.py)
                                  --> WebEngine (engines.py): the requests and answers of this engine
                                          --> plain_text.py: removes markup, formats documents like corpora

`options.py` declares the options of `rag-r1 index serve` for web engines.

A web engine is a `RemoteSource` (see retrieval_server/source.py), which sends a separate request for each
query. Keys are read only from the environment and sent in a header. They never appear in a log, an error or a
recording.
"""
