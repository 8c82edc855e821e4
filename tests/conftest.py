"""Before any test imports torch: the matrix library as the retrieval server and its builds set it."""

from retrieval_server.processor import prefer_reproducible_products

prefer_reproducible_products()
