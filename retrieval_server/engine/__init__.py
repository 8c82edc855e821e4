"""The engine: queues queries, batches them, and searches them in a source."""
