"""The passages from which questions are written, and the links between them."""
