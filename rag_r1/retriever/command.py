"""`rag-r1 retriever`: the subcommands that make a retriever for the agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rag_r1.options.subcommands import run

#: Subcommand -> the module with its `main`, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "data": ("rag_r1.retriever.data.command", "make training data: passages that help the agent; resumable"),
    "train": ("rag_r1.retriever.training.command", "train a retriever on rows of training data; resumable"),
    "select": ("rag_r1.retriever.selection.command", "select training rows again from recorded scores"),
}
_ABOUT = "A retriever that is trained on what helps the agent (Agentic-R)."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns its exit status; 2 for one that does not exist."""
    return run("rag-r1 retriever", _ABOUT, COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
