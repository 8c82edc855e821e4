"""The command that chats with the result of a run: the same agent, over the same documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.serving.terminal.command import ChatArguments

#: Of a server that is started as the line before says.
_SERVED = "http://127.0.0.1:8000"


def chat_lines(artifacts: OwnArtifacts) -> Iterator[str]:
    """What is printed at the end; the last line is the command, which can be pasted as it is."""
    plan = artifacts.plan
    if plan.documents.folder is not None and plan.index.backend == "bm25":
        search = {"documents": Path(plan.documents.folder)}
    else:
        yield "serve the index in another terminal:"
        yield shlex.join(["rag-r1", "index", "serve", "--index", str(artifacts.index), "--port", "8000"])
        search = {"retriever_url": _SERVED}
    yield "chat with the agent (with `rag-r1 serve` in a browser):"
    yield shlex.join(["rag-r1", "chat", *chat_arguments(artifacts, **search).to_argv()])


def chat_arguments(artifacts: OwnArtifacts, **search: Path | str) -> ChatArguments:
    """The arguments of `rag-r1 chat` for the last model of a run."""
    plan = artifacts.plan
    model = str(artifacts.final) if plan.policy.url is None else str(plan.policy.model)
    served = {} if plan.policy.url is None else {"base_url": plan.policy.url}
    return ChatArguments(
        model=model, out=artifacts.out / "chat", **served, **search, **artifacts.episodes.playing
    )
