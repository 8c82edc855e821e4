"""`rag-r1 retriever`: dispatches to the subcommands that train a retriever for the agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rag_r1.options.subcommands import run

#: Maps each subcommand to the module that has its `main`, and to its line in --help.
COMMANDS: dict[str, tuple[str, str]] = {
    "data": ("rag_r1.retriever.data.command", "make training data: passages that help the agent; resumable"),
    "train": ("rag_r1.retriever.training.command", "train a retriever on rows of training data; resumable"),
    "select": ("rag_r1.retriever.selection.command", "select training rows again from recorded scores"),
}
_ABOUT = "A retriever that is trained on what helps the agent (Agentic-R)."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status, which is 2 for an unknown subcommand."""
    return run("rag-r1 retriever", _ABOUT, COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
