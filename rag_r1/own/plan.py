"""The plan of `rag-r1 own`: all settings of a run, in sections of a YAML file.

    documents:   {folder: manuals}
    teacher:     {url: https://api.example.org/v1, model: big-model}
    policy:      {model: models/Qwen2.5-7B-Instruct}

Each class below declares a section and its keys. The docstring of the class and the text of each `key` are
written into the file as comments (plan_file.py). Recipes and a platform that are null are chosen by the size
of the model and by the machine (sizes.py) before the plan is written, so that a written plan is complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, Field, Strict

from rag_r1.options.command_line import Above0, From0, Share, Variable
from rag_r1.options.declare import options
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, FilledText, Flag, PositiveCount, Text
from rag_r1.protocols import Protocol, load_with_prompt
from rag_r1.questions.seeds import KINDS, KindName
from rag_r1.questions.spec import ModelSpec, RequestLimits
from rag_r1.runs.settings import json_roundtrip

Texts = Annotated[tuple[Text, ...], Constraint("a list of texts")]
KeyVariable = Annotated[Variable, Strict()]
Paths = Annotated[tuple[FilledText, ...], Constraint("a list of paths")]
Kinds = Annotated[tuple[KindName, ...], Field(min_length=1), Constraint(f"a list of {', '.join(KINDS)}")]


def _json_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's keys as JSON has them: a date becomes a text, and ValueError is raised for NaN and
    infinities."""
    json.dumps(body, allow_nan=False, default=str)
    return json_roundtrip(body)


Body = Annotated[dict[Text, Any], AfterValidator(_json_body), Constraint("a mapping of a request's keys")]
Platform = Literal["cpu", "gpu", "gpu_sdpa"]
#: Numbers as YAML has them. Those of flags are read from texts, but here "2" is refused, and so is true.
Price = Annotated[From0, Strict()]
Cost = Annotated[Above0, Strict()]
StrictShare = Annotated[Share, Strict()]
#: The trainings take no larger seed.
Seed = Annotated[
    int, Strict(), Field(ge=-(1 << 63), lt=1 << 63), Constraint("a whole number of at most 64 bits")
]


def key(default: Any, comment: str) -> Any:
    """Declare a key of the plan, with its default (or a function that makes it) and its comment."""
    if callable(default):
        return Field(default_factory=default, description=comment)
    return Field(default=default, description=comment)


@options("documents")
class DocumentsPlan:
    """the documents, or passages that are cut already"""

    folder: FilledText | None = key(None, "folder of documents, subfolders too; null if there is a corpus")
    corpus: Paths = key((), "files of passages (JSON lines) instead of a folder")
    skip_bad_files: Flag = key(False, "leave out documents that cannot be read")


@options("index")
class IndexPlan:
    """the index that is searched, in training and afterwards"""

    backend: Literal["bm25", "dense"] = key("bm25", "bm25, or dense with an encoder")
    encoder: FilledText | None = key(None, "embedding model for dense, such as intfloat/e5-base-v2")


@options("teacher")
class TeacherPlan:
    """the model that writes the questions and plays the traces"""

    url: Address | None = key(None, "address of an OpenAI-compatible server, up to and with /v1")
    model: Text | None = key(None, "name of the model there; null: the only one that the server lists")
    api_key_env: KeyVariable = key("OPENAI_API_KEY", "environment variable with the key")
    body: Body = key(dict, "further keys of each request, such as {max_tokens: 2000}")
    price_in: Price = key(0.0, "price of a million prompt tokens")
    price_out: Price = key(0.0, "price of a million generated tokens")
    max_cost: Cost | None = key(None, "stop questions and traces at this cost of both models together")
    in_flight: PositiveCount = key(32, "requests at a time")


@options("reader")
class ReaderPlan:
    """the model that verifies the questions; without a model, the teacher"""

    url: Address | None = key(None, "address of its server, up to and with /v1; null: the teacher's")
    model: Text | None = key(None, "name of the model there")
    api_key_env: KeyVariable = key("READER_API_KEY", "environment variable with the key of that address")
    price_in: Price = key(0.0, "price of a million prompt tokens")
    price_out: Price = key(0.0, "price of a million generated tokens")


@options("questions")
class QuestionsPlan:
    """the questions: written by the teacher and verified, or your own"""

    train: Paths = key(
        (), "your own questions with answers (parquet, JSON, CSV, ...) instead of the teacher's"
    )
    test: Paths = key((), "your own held-out questions, with which everything is evaluated")
    kinds: Kinds = key(KINDS, "kinds that the teacher writes")
    per_kind: PositiveCount = key(200, "most questions of each kind")
    test_share: StrictShare = key(0.2, "share of the documents whose questions are held out")


@options("policy")
class PolicyPlan:
    """the model that is trained, and how it plays"""

    model: FilledText | None = key(None, "folder of a Hugging Face model, or its name on the Hub")
    url: Address | None = key(None, "a server that has it already; only if nothing is trained")
    protocol: Text = key("rag_r1_mq", "protocol of its turns: a name, or a .yaml file")
    prompt: FilledText | None = key(None, "file with a prompt of its own, with {question} in it")
    keys: Texts = key((), "keys of the block rag_r1, such as rag_r1.retriever.topk=5")
    platform: Platform | None = key(None, "cpu, gpu or gpu_sdpa (no flash-attn), for recipes chosen by size")


@options("traces")
class TracesPlan:
    """the teacher's trajectories, which become SFT data"""

    questions: PositiveCount | None = key(None, "number of training questions, from the first; null: all")
    samples: PositiveCount = key(1, "trajectories for each question")
    max_turn_tokens: PositiveCount = key(1024, "tokens of a turn of the teacher")
    metric: Literal["em", "cover_em", "any"] = key("em", "metric that decides which traces are right")


@options("sft")
class SftPlan:
    """supervised fine-tuning on the right traces"""

    skip: Flag = key(False, "leave out traces and SFT: reinforcement learning begins with the model")
    recipe: Text | None = key(None, "recipe of `rag-r1 sft`")
    overrides: Texts = key((), "changes of the recipe's keys, such as trainer.total_epochs=2")


@options("filter")
class FilterPlan:
    """which questions are trained on: neither known nor too hard"""

    skip: Flag = key(False, "train on all questions")
    questions: PositiveCount | None = key(None, "number of training questions, from the first; null: all")
    replays: PositiveCount = key(10, "further attempts at a question whose first answer is wrong")
    share: StrictShare = key(0.25, "share that is kept of the questions that are right at once")


@options("grpo")
class GrpoPlan:
    """reinforcement learning"""

    skip: Flag = key(False, "leave it out")
    recipe: Text | None = key(None, "recipe of `rag-r1 train`; its episodes are those of every step")
    steps: PositiveCount | None = key(None, "number of steps; null: as many as the recipe says")
    overrides: Texts = key((), "changes of the recipe's keys, such as trainer.n_gpus_per_node=8")


@options("evaluation")
class EvaluationPlan:
    """what is measured on the held-out questions"""

    skip: Flag = key(False, "leave it out, and the report with it")
    questions: PositiveCount | None = key(None, "number of held-out questions, from the first; null: all")
    card: Flag = key(True, "a search card of the last model: does it search, or does it know?")
    one_shot: Flag = key(True, "the untrained model with one search for the question (RAG)")
    one_shot_prompt: FilledText | None = key(None, "your own prompt for it, with {documents} and {question}")


@options("run")
class RunPlan:
    """the run itself"""

    seed: Seed = key(0, "seed of everything that is chosen at random")


@dataclass(frozen=True)
class OwnPlan:
    """The plan of a run; each field is a section."""

    documents: DocumentsPlan
    index: IndexPlan
    teacher: TeacherPlan
    reader: ReaderPlan
    questions: QuestionsPlan
    policy: PolicyPlan
    traces: TracesPlan
    sft: SftPlan
    filter: FilterPlan
    grpo: GrpoPlan
    evaluation: EvaluationPlan
    run: RunPlan

    @property
    def trains(self) -> bool:
        """Whether anything is trained."""
        return not (self.sft.skip and self.grpo.skip)

    @property
    def writes_questions(self) -> bool:
        """Whether the teacher writes the questions."""
        return not (self.questions.train or self.questions.test)

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher gets any request."""
        return self.writes_questions or not self.sft.skip

    @property
    def teacher_spec(self) -> ModelSpec:
        """The server and model of the teacher. The plan must name both."""
        teacher = self.teacher
        assert teacher.url is not None and teacher.model is not None  # checks.py requires both
        return ModelSpec(
            teacher.url,
            teacher.model,
            teacher.api_key_env,
            teacher.body,
            price_in=teacher.price_in,
            price_out=teacher.price_out,
        )

    @property
    def reader_spec(self) -> ModelSpec | None:
        """The server and model of the reader; None if the teacher verifies the questions itself."""
        reader, teacher = self.reader, self.teacher
        if reader.model is None:
            return None
        url, variable = (reader.url, reader.api_key_env) if reader.url else (teacher.url, teacher.api_key_env)
        assert url is not None  # checks.py requires the teacher's
        return ModelSpec(url, reader.model, variable, price_in=reader.price_in, price_out=reader.price_out)

    @property
    def limits(self) -> RequestLimits:
        """The limits of the requests to the teacher and the reader."""
        return RequestLimits(in_flight=self.teacher.in_flight, max_cost=self.teacher.max_cost)

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol of the episodes, with the policy's prompt. Raises ValueError if it cannot be read."""
        return load_with_prompt(self.policy.protocol, self.policy.prompt)

    @property
    def model(self) -> Path:
        """The folder of the model that is trained, or its name on the Hub as a path."""
        assert self.policy.model is not None  # checks.py requires it
        return Path(self.policy.model)

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return the values by section and key, converted to the types of YAML and JSON."""
        return json.loads(json.dumps(asdict(self)))


#: The class of each section, by its name.
SECTIONS: dict[str, Any] = get_type_hints(OwnPlan)
