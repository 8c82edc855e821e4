"""The queue: requests to batches, batches to a source, answers to requests."""
