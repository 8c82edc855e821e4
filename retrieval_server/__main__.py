"""Runs the commands of `rag-r1 index` as `python -m retrieval_server COMMAND`."""

import sys

from retrieval_server.commands import main

sys.exit(main(prog="python -m retrieval_server"))
