"""The index folder on disk: corpus, passages, manifest, shards, and the publication of a finished index."""
