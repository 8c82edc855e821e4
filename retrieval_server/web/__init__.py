"""Web search engines behind the same wire as an index.

    WebSource (source.py) --> Tape (tape.py): is the answer recorded?
                          --> WebClient (client.py): ask; retry, wait, or give up at once (breaker.py)
                                  --> WebEngine (engines.py): how this engine is asked, and read
                                          --> text.py: markup out, house convention in

``options.py`` declares the options of start_retrieval.py.

A web engine is a ``RemoteSource`` (see sources.py): each query travels on its own. Keys are read from the
environment only, travel in a header, and stand in no log, error or recording.
"""
