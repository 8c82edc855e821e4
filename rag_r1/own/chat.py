"""Prints the command that chats with the trained agent over the same documents.

`rag-r1 chat` can index a folder of documents itself, but only with BM25. In all other cases the index of the
run has to be served, so the command that serves it is printed first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.serving.terminal.arguments import ChatArguments

#: Port of the retrieval server that the printed command starts.
_PORT = "8000"


def chat_lines(artifacts: OwnArtifacts) -> Iterator[str]:
    """Yield the lines to print at the end of a run; the last one is the command, ready to be pasted. Raises
    RunError if the run has left no model."""
    source = artifacts.plan.documents
    if source.folder is not None and artifacts.plan.index.backend == "bm25":
        search: dict[str, Any] = {"documents": Path(source.folder), "skip_bad_files": source.skip_bad_files}
    else:
        yield "serve the index in another terminal:"
        yield shlex.join(["rag-r1", "index", "serve", "--index", str(artifacts.index), "--port", _PORT])
        search = {"retriever_url": f"http://127.0.0.1:{_PORT}"}
    yield "chat with the agent (with `rag-r1 serve` in a browser):"
    yield shlex.join(["rag-r1", "chat", *_chat_arguments(artifacts, search).to_argv()])


def _chat_arguments(artifacts: OwnArtifacts, search: Mapping[str, Any]) -> ChatArguments:
    """Return the arguments of `rag-r1 chat` for the model that results from a run.

    `search` has those that say what is searched: `documents` with `skip_bad_files`, or `retriever_url`.
    """
    policy, out = artifacts.plan.policy, artifacts.out / "chat"
    model = artifacts.final_model if policy.url is None else policy.model
    playing = artifacts.episodes.policy_arguments
    return ChatArguments(model=str(model), base_url=policy.url, out=out, **search, **playing)
