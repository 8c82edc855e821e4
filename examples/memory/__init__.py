"""The memory experiment in miniature: a context that holds only one page, with and without a memory."""
