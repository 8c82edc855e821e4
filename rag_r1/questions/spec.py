"""Declares `QuestionsSpec`, the settings of a run of `rag-r1 questions` as typed values.

The command line makes one from its arguments, and a program can do the same:

    spec = QuestionsSpec(corpus=(Path("corpus.jsonl"),), out=Path("own"), teacher=ModelSpec(url, "big-model"))
    result = await write_questions(spec)

The property `settings` returns the values on which the questions depend. It leaves out addresses, keys,
prices, `max_cost` and limits of speed, so these may be changed when a run is resumed. run.py adds what is
known only from files and the server: hashes of the passages and the prompts, the wire format and the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.inference.client import EndpointOptions
from rag_r1.questions.seeds import KINDS, KindName


@dataclass(frozen=True)
class ModelSpec:
    """A model behind an OpenAI-compatible endpoint."""

    url: str
    model: str
    #: Environment variable with the API key.
    key_variable: str = "OPENAI_API_KEY"
    #: Further keys of each request. A value of None removes a key.
    body: Mapping[str, Any] = field(default_factory=dict)
    #: Prices of a million prompt tokens and of a million generated tokens.
    price_in: float = 0.0
    price_out: float = 0.0


@dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests to the models. Fields without a comment are those of EndpointOptions. Raises
    ValueError for limits with which no request would ever be sent."""

    in_flight: int = 64
    #: Requests and tokens per minute.
    rpm: float | None = None
    tpm: float | None = None
    timeout_s: float = 300.0
    retries: int = 6
    backoff_s: float = 1.0
    trust_env: bool = False
    #: Limit of the total cost of all requests, in the currency of the prices.
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("in_flight", "rpm", "tpm"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name}={value} must be above 0: change it")

    def endpoint(self, model: ModelSpec) -> EndpointOptions:
        """Return the options of the endpoint of a model."""
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
    """The rules by which drafts are verified. Raises ValueError if `right` is not from 1 to `samples`."""

    #: How often the reader is asked in each reading.
    samples: int = 3
    #: How many of these answers must be right when the reader sees the draft's passages; at least one.
    right: int = 2
    #: The draft's passages must be among this many results of a search.
    topk: int = 10
    #: Number of other passages in which the reader looks for another answer.
    neighbours: int = 10
    #: Whether the reader also judges the wording of the question.
    review: bool = True
    #: Similarity of wordings from which two questions are duplicates; 0: see results/duplicates.py.
    similarity: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.right <= self.samples:
            raise ValueError(f"right={self.right} must be from 1 to samples={self.samples}: change it")


@dataclass(frozen=True)
class QuestionsSpec:
    """The settings of a run of `rag-r1 questions`."""

    #: Files or folders with the passages.
    corpus: tuple[Path, ...]
    #: Folder of the run.
    out: Path
    teacher: ModelSpec
    #: The model that verifies; None if the teacher does so itself.
    reader: ModelSpec | None = None
    retriever_url: str = "http://127.0.0.1:8000"
    #: Wire format of the retrieval server, a key of rag_r1.tools.retrieval.wire.WIRES.
    wire: str = "retrieve"
    kinds: tuple[KindName, ...] = KINDS
    #: Number of seeds of each kind, and so the largest number of questions of a kind.
    per_kind: int = 200
    seed: int = 0
    #: Share of the documents that are in the test split.
    test_share: float = 0.2
    #: Share of the bridges that describe the first subject instead of naming it.
    obscure_share: float = 0.3
    #: Number of passages in the sample of the corpus from which questions are written.
    most_passages: int = 100_000
    #: Temperature of the teacher's sampling.
    temperature: float = 0.7
    protocol: str = "rag_r1_mq"
    #: File with the user's own prompt; None means the protocol's.
    prompt: str | None = None
    #: `data_source` of the rows, and prefix of their ids.
    source_name: str = "own"
    verification: Verification = Verification()
    limits: RequestLimits = RequestLimits()

    @property
    def reading(self) -> ModelSpec:
        """The model that verifies: the reader, or else the teacher."""
        return self.reader or self.teacher

    @property
    def settings(self) -> dict[str, Any]:
        """The settings on which the questions depend, except what is read from files and servers."""
        names = ("kinds", "per_kind", "seed", "test_share", "obscure_share", "most_passages", "temperature")
        models = {"teacher": self.teacher, "reader": self.reading}
        return {
            "command": "questions",
            **{name: getattr(self, name) for name in names},
            "protocol": self.protocol,
            "own_prompt": self.prompt is not None,
            "source_name": self.source_name,
            **{name: {"model": model.model, "body": dict(model.body)} for name, model in models.items()},
            "verification": asdict(self.verification),
        }
