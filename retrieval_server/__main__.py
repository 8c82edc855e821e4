"""`python -m retrieval_server COMMAND`: the commands of `rag-r1 index`."""

import sys

from retrieval_server.commands import main

sys.exit(main(prog="python -m retrieval_server"))
