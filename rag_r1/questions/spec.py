"""`QuestionsSpec`: the settings of a run of `rag-r1 questions`, as typed values. The command line makes one,
and so may a program:

    spec = QuestionsSpec(corpus=(Path("corpus.jsonl"),), out=Path("own"), teacher=ModelSpec(url, "big-model"))
    result = await write_questions(spec)

`settings` are those on which the questions depend. Addresses, keys, prices and what only decides how fast the
run goes are not among them, so they may differ when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.inference.client import EndpointOptions
from rag_r1.questions.seeds import KINDS, KindName


@dataclass(frozen=True)
class ModelSpec:
    """A model behind an OpenAI-compatible endpoint. `body`: further keys of each request, of which null
    removes one; prices are per million tokens."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    body: Mapping[str, Any] = field(default_factory=dict)
    price_in: float = 0.0
    price_out: float = 0.0


@dataclass(frozen=True)
class RequestLimits:
    """How requests are sent: the options of EndpointOptions, the limits of requests (`rpm`) and tokens
    (`tpm`) per minute, and the most that all requests may cost."""

    in_flight: int = 64
    rpm: float | None = None
    tpm: float | None = None
    timeout_s: float = 300.0
    retries: int = 6
    backoff_s: float = 1.0
    trust_env: bool = False
    max_cost: float | None = None

    def endpoint(self, model: ModelSpec) -> EndpointOptions:
        """The options of requests to a model."""
        return EndpointOptions(
            model.url,
            model.key_variable,
            in_flight=self.in_flight,
            timeout_s=self.timeout_s,
            retries=self.retries,
            backoff_s=self.backoff_s,
            trust_env=self.trust_env,
        )


@dataclass(frozen=True)
class Verification:
    """The rules by which a draft is verified. `samples`: times that the reader is asked in each check, of
    which `right` must be right with the passages; `topk`: passages of a search in which a draft's own must
    be; `neighbours`: other passages that the reader is shown; `standalone`: whether the reader is asked if a
    question makes sense; `similarity`: the one from which two questions are duplicates (0: only if they are
    equal)."""

    samples: int = 3
    right: int = 2
    topk: int = 10
    neighbours: int = 10
    standalone: bool = False
    similarity: float = 0.8


@dataclass(frozen=True)
class QuestionsSpec:
    """The settings of a run. `reader`: None if the teacher reads; `per_kind`: seeds of each kind, and so the
    most questions; `most_passages`: most passages of the corpus from which questions are written;
    `obscure_share`: share of the bridges whose first name is replaced by a description."""

    corpus: tuple[Path, ...]
    out: Path
    teacher: ModelSpec
    reader: ModelSpec | None = None
    retriever_url: str = "http://127.0.0.1:8000"
    wire: str = "retrieve"
    kinds: tuple[KindName, ...] = KINDS
    per_kind: int = 200
    seed: int = 0
    test_share: float = 0.2
    obscure_share: float = 0.3
    most_passages: int = 100_000
    temperature: float = 0.7
    protocol: str = "rag_r1_mq"
    prompt: str | None = None
    source_name: str = "own"
    verification: Verification = Verification()
    limits: RequestLimits = RequestLimits()

    @property
    def reading(self) -> ModelSpec:
        """The model that reads."""
        return self.reader or self.teacher

    @property
    def settings(self) -> dict[str, Any]:
        """The settings on which the questions depend, without what is read from files and servers."""
        names = ("kinds", "per_kind", "seed", "test_share", "obscure_share", "most_passages", "temperature")
        models = {"teacher": self.teacher, "reader": self.reading}
        return {
            "command": "questions",
            **{name: getattr(self, name) for name in names},
            "protocol": self.protocol,
            "own_prompt": self.prompt is not None,
            "source_name": self.source_name,
            **{name: {"model": model.model, "body": dict(model.body)} for name, model in models.items()},
            "verification": vars(self.verification),
        }
