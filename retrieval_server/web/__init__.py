"""Web search engines as sources, behind the same wire format as an index.

    WebSource (source.py) --> Tape (recordings.py): is the answer recorded?
                          --> WebClient (client.py): send; retry, wait, fail (retry.py, circuit_breaker.py)
                                  --> WebEngine (engines.py): the requests and answers of this engine
                                          --> plain_text.py: removes markup, formats documents like corpora

`options.py` declares the options of `rag-r1 index serve`.

A web engine is a `RemoteSource` (see retrieval_server/source.py): each query is a request of its own. Keys
are read from the environment only, sent in a header, and appear in no log, error or recording.
"""
