"""`rag-r1 retriever`: what makes a retriever for the agent, as subcommands of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

#: Subcommand -> the module with its `main`, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "data": ("rag_r1.retriever.data", "make training data: which passages help the agent? resumable"),
    "train": ("rag_r1.retriever.train", "train a retriever on these rows; resumable"),
    "select": ("rag_r1.retriever.select_command", "select training rows again from recorded scores"),
}


def usage() -> str:
    """The text of `rag-r1 retriever --help`."""
    return "\n".join(
        [
            "usage: rag-r1 retriever COMMAND [arguments]",
            "",
            "A retriever that is trained on what helps the agent (Agentic-R).",
            "",
            *(f"  {name:16}{what}" for name, (_, what) in COMMANDS.items()),
            "",
            "rag-r1 retriever COMMAND --help describes each command.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns its exit status; 2 for one that does not exist."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"rag-r1 retriever: there is no command {command!r}\n\n{usage()}", file=sys.stderr)
        return 2
    return import_module(COMMANDS[command][0]).main(rest)


if __name__ == "__main__":
    sys.exit(main())
