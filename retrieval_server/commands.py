"""The commands of the retrieval server: `rag-r1 index COMMAND`, or `python -m retrieval_server COMMAND`.

Each command is a module with a function `main(argv, prog) -> exit status` and its own `--help`. It is
imported only when it is called, so that `--help` is fast and needs only the base dependencies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

#: Command -> the module with its `main`, and a summary for `--help`.
COMMANDS = {
    "build": ("retrieval_server.build_index", "make an index folder from a corpus; resumable"),
    "import": ("retrieval_server.import_index", "make one from a FAISS file, or from existing vectors"),
    "split": ("retrieval_server.shard_index", "divide an index into shards, for several machines"),
    "serve": ("retrieval_server.start_retrieval", "answer queries over HTTP from index folders or the web"),
}
_EXAMPLE = """\
From a file of passages to answers:

    {prog} build --corpus corpus.jsonl --out indexes/bm25 --backend bm25
    {prog} serve --index indexes/bm25
    curl -s localhost:8000/retrieve -H 'content-type: application/json' \\
        -d '{{"queries": ["Who wrote Emma?"]}}'
"""


def usage(prog: str) -> str:
    """Return the text of `--help`."""
    lines = [f"  {name:10}{summary}" for name, (_, summary) in COMMANDS.items()]
    heading = [f"usage: {prog} COMMAND [arguments]", "", "A retrieval server for search agents.", ""]
    end = f"{prog} COMMAND --help describes each command."
    return "\n".join([*heading, *lines, "", _EXAMPLE.format(prog=prog), end])


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index") -> int:
    """Run a command and return its exit status, which is 2 if there is no such command.

    `argv` defaults to the arguments of the process. `prog` is the command as the user called it, for
    messages.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(prog))
        return 0 if argv else 2
    command, *arguments = argv
    if command not in COMMANDS:
        similar = get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {similar[0]}?\nsee {prog} --help" if similar else f"\n\n{usage(prog)}"
        print(f"{prog}: there is no command {command!r}{hint}", file=sys.stderr)
        return 2
    return import_module(COMMANDS[command][0]).main(arguments, f"{prog} {command}")
