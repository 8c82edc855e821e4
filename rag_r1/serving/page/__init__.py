"""The chat page: its files, and the description of the server, its agent and example questions that it shows.

The app serves the files (app.py), and the page requests the description from `/about`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.http_server.page import SCRIPT, SHARED_FILES, STYLE

_FOLDER = Path(__file__).parent
#: The files of the page with their content types, by address. They are served without a token.
PAGE_FILES = {
    **SHARED_FILES,
    "/": (_FOLDER / "chat.html", "text/html; charset=utf-8"),
    "/chat.css": (_FOLDER / "chat.css", STYLE),
    **{f"/{name}.js": (_FOLDER / f"{name}.js", SCRIPT) for name in ("chat", "turn", "stream", "share")},
}
#: The part of a checkpoint's path that has the step of the training.
_STEP = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class ExampleQuestion:
    """A question that the page suggests."""

    question: str
    #: What is needed to answer it, such as the number of hops; empty if unknown.
    kind: str = ""


@dataclass(frozen=True)
class PageInfo:
    """The description of the server that the page shows."""

    #: What is searched, in words.
    what: str = ""
    #: A remark about the server.
    note: str = ""
    examples: tuple[ExampleQuestion, ...] = ()
    protocol: str = ""
    #: The most earlier questions in the prompt of a follow-up question.
    history: int = 0
    #: The name of the model that answers.
    model: str = ""
    #: The training step of the model; None if unknown.
    step: int | None = None
    #: The index or the retrieval server that is searched.
    index: str = ""
    #: The accepted answers by question, where they are known. The page only gets them with an answer.
    golds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def public(self) -> dict[str, Any]:
        """Return everything but the accepted answers, as JSON types."""
        values = asdict(self)
        del values["golds"]
        return values


def model_name(model: str) -> tuple[str, int | None]:
    """Return the name to show for a model, and the step of its checkpoint, None if its path has none. The
    name of a folder is that of its run or, without one, the folder's own; other names are not changed."""
    if os.path.isdir(model):
        model = os.path.abspath(model)  # `.` has no name
    step = _STEP.search(model)
    path = Path(model[: step.start()]) if step else Path(model)
    if step is None and not path.is_dir():
        return model, None
    parts = [part for part in path.parts if part not in ("checkpoints", "actor", "huggingface", "/")]
    return (parts[-1] if parts else model), (int(step[1]) if step else None)
