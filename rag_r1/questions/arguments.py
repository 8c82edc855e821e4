"""The command-line options of `rag-r1 questions`, and their conversion to the settings of a run (spec.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rag_r1.options.command_line import Filled, From0, From0Count, Positive, Share, Variable, argument
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint
from rag_r1.protocols import protocol_names
from rag_r1.questions.seeds import KINDS, KindName
from rag_r1.questions.spec import ModelSpec, QuestionsSpec, RequestLimits, Verification
from rag_r1.rollouts.agent_arguments import COST, MODEL_SERVER, SAMPLING
from rag_r1.rollouts.arguments import EndpointArguments, json_body
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.tools.retrieval.wire import WIRES

#: Groups of rarely used flags in `--help`.
READER = "the reader"
CHECKING = "what is verified"
#: The default of --reader-api-key-env.
READER_KEY = "READER_API_KEY"


class QuestionsArguments(EndpointArguments):
    """The arguments of `rag-r1 questions`."""

    corpus: list[Path] = argument("corpus: .jsonl, .tsv (also .gz), .parquet, or a folder", ("FILE", ...))
    out: Path = argument("folder of the run; run again, the command goes on where it was interrupted", "DIR")
    base_url: Address = argument("address of the teacher's endpoint, up to and with /v1", "URL")
    teacher_model: Filled = argument("name of the teacher at its endpoint", "NAME")
    api_key_env: Variable = argument(
        "environment variable with the teacher's key", "NAME", default="OPENAI_API_KEY", rare=MODEL_SERVER
    )
    reader_url: Address | None = argument(
        "endpoint of the reader, up to and with /v1 (default: the teacher's)", "URL", default=None
    )
    reader_model: Filled | None = argument(
        "name of the reader at its endpoint (default: the teacher reads)", "NAME", default=None
    )
    reader_api_key_env: Variable = argument(
        "environment variable with the key of --reader-url", "NAME", default=READER_KEY, rare=READER
    )
    reader_body: str = argument(
        "further keys of each request to the reader; null leaves a key out", "JSON", default="{}", rare=READER
    )
    reader_price_in: From0 = argument(
        "price of a million prompt tokens of the reader", default=0.0, rare=READER
    )
    reader_price_out: From0 = argument(
        "price of a million generated tokens of the reader", default=0.0, rare=READER
    )
    retriever_url: Address = argument(
        "retrieval server with this corpus", "URL", default="http://127.0.0.1:8000"
    )
    wire: Literal[tuple(WIRES)] = argument(
        "wire format of the retrieval server", default="retrieve", rare=CHECKING
    )
    kinds: Annotated[list[KindName], Constraint(f"of {', '.join(KINDS)}")] = argument(
        "kinds of questions", ("KIND", ...), default=list(KINDS)
    )
    per_kind: Positive = argument("seeds, and so at most questions, of each kind", "N", default=200)
    seed: int = argument("seed of the splits and of what is drawn", default=0)
    test_share: Share = argument("share of the documents that are only in test", "SHARE", default=0.2)
    obscure: Share = argument(
        "share of the bridges that describe their first subject instead of naming it", "SHARE", default=0.3
    )
    most_passages: Positive = argument(
        "passages of the corpus from which questions are written", "N", default=100_000, rare=SAMPLING
    )
    temperature: From0 = argument("temperature of the teacher's sampling", "T", default=0.7, rare=SAMPLING)
    protocol: str = argument(
        f"protocol of the rows ({', '.join(protocol_names())}), or your own .yaml",
        "NAME",
        default="rag_r1_mq",
    )
    prompt: str | None = argument("your own prompt: a text file with {question} in it", "FILE", default=None)
    source_name: Annotated[str, Field(pattern=r"\S"), Constraint("a name that is not empty")] = argument(
        "data_source of the rows, and the prefix of their ids", "NAME", default="own"
    )
    samples: Positive = argument("how often the reader is asked in each check", "N", default=3, rare=CHECKING)
    right: Positive = argument(
        "of the --samples answers, how many must be right with the passages", "N", default=2, rare=CHECKING
    )
    topk: Positive = argument(
        "passages of a search in which a question's own must be", "K", default=10, rare=CHECKING
    )
    neighbours: From0Count = argument(
        "other passages in which the reader looks for another answer", "N", default=10, rare=CHECKING
    )
    no_review: bool = argument(
        "do not let the reader judge the wording of each question", default=False, rare=CHECKING
    )
    near_duplicates: Share = argument(
        "similarity from which two questions are duplicates; 0: only if they are equal",
        "SIMILARITY",
        default=0.8,
        rare=CHECKING,
    )
    estimate: bool = argument("only print what the run would take", default=False, rare=COST)
    check_only: bool = argument(CHECK_ONLY, default=False)

    # Each check is a validator of its own, since only the first error of one is reported.
    @model_validator(mode="after")
    def _reader_has_model(self) -> QuestionsArguments:
        if self.reader_url is not None and self.reader_model is None:
            raise ValueError("--reader-url needs --reader-model, the name of the model there")
        return self

    @model_validator(mode="after")
    def _reader_flags_fit_model(self) -> QuestionsArguments:
        body = json_body("--reader-body", self.reader_body)
        is_alone = self.reader_model is None and self.reader_url is None  # else --reader-url names the model
        if is_alone and (body or self.reader_price_in or self.reader_price_out):
            raise ValueError("--reader-body and --reader-price-* need --reader-model: else the teacher reads")
        return self

    @model_validator(mode="after")
    def _reader_key_fits_url(self) -> QuestionsArguments:
        if self.reader_url is None and self.reader_api_key_env != READER_KEY:
            raise ValueError("--reader-api-key-env needs --reader-url: --base-url uses --api-key-env")
        return self

    @model_validator(mode="after")
    def _kinds_differ(self) -> QuestionsArguments:
        if repeated := [kind for kind in self.kinds if self.kinds.count(kind) > 1]:
            raise ValueError(f"--kinds names {repeated[0]} twice: leave one out")
        return self

    @model_validator(mode="after")
    def _enough_answers(self) -> QuestionsArguments:
        if self.right > self.samples:
            raise ValueError(f"--right {self.right} is more than --samples {self.samples}: lower it")
        return self

    def spec(self) -> QuestionsSpec:
        """Convert the arguments to the settings of a run."""
        return QuestionsSpec(
            corpus=tuple(self.corpus),
            out=self.out,
            teacher=ModelSpec(
                self.base_url,
                self.teacher_model,
                key_variable=self.api_key_env,
                body=_valid_body("--body", self.body),
                price_in=self.price_in,
                price_out=self.price_out,
            ),
            reader=self._reader(),
            retriever_url=self.retriever_url,
            wire=self.wire,
            kinds=tuple(self.kinds),
            per_kind=self.per_kind,
            seed=self.seed,
            test_share=self.test_share,
            obscure_share=self.obscure,
            most_passages=self.most_passages,
            temperature=self.temperature,
            protocol=self.protocol,
            prompt=self.prompt,
            source_name=self.source_name,
            verification=Verification(
                samples=self.samples,
                right=min(self.right, self.samples),  # a larger one must not end the other checks
                topk=self.topk,
                neighbours=self.neighbours,
                review=not self.no_review,
                similarity=self.near_duplicates,
            ),
            limits=RequestLimits(
                in_flight=self.in_flight,
                rpm=self.rpm,
                tpm=self.tpm,
                timeout_s=self.timeout_s,
                retries=self.retries,
                backoff_s=self.backoff_s,
                trust_env=self.trust_env,
                max_cost=self.max_cost,
            ),
        )

    def _reader(self) -> ModelSpec | None:
        """Return the model that verifies; None if the teacher does so itself."""
        if self.reader_model is None:
            return None
        return ModelSpec(
            self.reader_url or self.base_url,
            self.reader_model,
            key_variable=self.api_key_env if self.reader_url is None else self.reader_api_key_env,
            body=_valid_body("--reader-body", self.reader_body),
            price_in=self.reader_price_in,
            price_out=self.reader_price_out,
        )


def _valid_body(flag: str, text: str) -> dict[str, Any]:
    """Return the result of `json_body`, or {} for a wrong text, which must not end the other checks."""
    try:
        return json_body(flag, text)
    except ValueError:
        return {}
