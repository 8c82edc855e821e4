"""The chat page: its files, and what it shows about the server, the agent that answers and its questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.http_server.page import SCRIPT, SHARED_FILES, STYLE

_FOLDER = Path(__file__).parent
#: The files of the page by their address, each with its content type. They are served without a token.
PAGE_FILES = {
    **SHARED_FILES,
    "/": (_FOLDER / "chat.html", "text/html; charset=utf-8"),
    "/chat.css": (_FOLDER / "chat.css", STYLE),
    **{f"/{name}.js": (_FOLDER / f"{name}.js", SCRIPT) for name in ("chat", "turn", "stream", "share")},
}
_STEP = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class ExampleQuestion:
    """A question that the page suggests. `kind`: what it takes to answer it; empty: unknown."""

    question: str
    kind: str = ""


@dataclass(frozen=True)
class PageInfo:
    """The description of the server that the page shows. `what`: what is searched; `note`: a remark; `model`:
    the name of the model that answers; `step`: of its training, None if unknown; `index`: the search's;
    `history`: most earlier questions in the prompt of a follow-up. `golds`: right answers, by question, where
    they are known; the page gets them only with an answer."""

    what: str = ""
    note: str = ""
    examples: tuple[ExampleQuestion, ...] = ()
    protocol: str = ""
    history: int = 0
    model: str = ""
    step: int | None = None
    index: str = ""
    golds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def public(self) -> dict[str, Any]:
        """Everything but the right answers, as JSON types."""
        values = asdict(self)
        del values["golds"]
        return values


def model_name(model: str) -> tuple[str, int | None]:
    """Returns the name to show for a model, and the step of its checkpoint (None if its path has none): for a
    path the name of the run's folder or of the model's own, for anything else `model` itself."""
    step = _STEP.search(model)
    path = Path(model[: step.start()]) if step else Path(model)
    if step is None and not path.is_dir():
        return model, None
    parts = [part for part in path.parts if part not in ("checkpoints", "actor", "huggingface", "/")]
    return (parts[-1] if parts else model), (int(step[1]) if step else None)
