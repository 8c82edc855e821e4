"""Search in this process: the back ends, the reranker, and the index folder as a source."""
