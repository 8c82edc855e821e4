"""`rag-r1 questions`: writes questions from the user's own corpus with a model, and verifies each of them.

The teacher model writes a question for each seed, which is one passage or a chain of passages. The reader,
which is another model or the same one, verifies the question. Refused questions are counted by reason; the
others form a training set in which each question lists the passages that it needs.

This module declares the arguments, checks files and servers before the run, and prints the result. run.py
has the run itself, and readings.py says what the reader verifies.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import model_validator

from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.near_duplicates import require_library
from rag_r1.evaluation.report.summary import stop_message
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import ExitStatus
from rag_r1.options.command_line import From0, From0Count, Positive, Share, argument
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint
from rag_r1.protocols import load_with_prompt, protocol_names
from rag_r1.questions.card import summary_lines
from rag_r1.questions.documents import PassagePool
from rag_r1.questions.run import QuestionsResult, plan_questions, read_corpus, retriever_of, write_questions
from rag_r1.questions.search import try_search
from rag_r1.questions.seeds import KINDS, KindName
from rag_r1.questions.spec import ModelSpec, QuestionsSpec, RequestLimits, Verification
from rag_r1.rollouts.agent_arguments import COST, MODEL_SERVER, SAMPLING
from rag_r1.rollouts.arguments import EndpointArguments, json_body
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.server_check import ModelServer, check_replies
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, begin_checks, try_servers
from rag_r1.tools.retrieval.wire import WIRES

COMMAND = "rag-r1 questions"
_DESCRIPTION = """\
Write questions from a corpus of your own, for training a search agent, and verify each of them. Teacher and
reader are any OpenAI-compatible endpoints; keys are read from the environment. An interrupted run is resumed
by the same command, which repeats no finished request.

example:
  rag-r1 questions --corpus corpus.jsonl --retriever-url http://127.0.0.1:8000 --out own \\
      --base-url https://api.example.org/v1 --teacher-model big-model \\
      --reader-url http://127.0.0.1:8001/v1 --reader-model small-model --estimate

With --estimate it only prints what the run would take, and writes nothing; without, it writes the questions.
"""
_EPILOG = """\
The output is train.parquet and test.parquet, whose questions come from different documents; questions.jsonl,
the same in readable form; refused.jsonl, each refused draft with its reason; data_card.md and data_card.json.
"""
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
    teacher_model: str = argument("name of the teacher at its endpoint", "NAME")
    api_key_env: str = argument(
        "environment variable with the teacher's key", "NAME", default="OPENAI_API_KEY", rare=MODEL_SERVER
    )
    reader_url: Address | None = argument(
        "endpoint of the reader, up to and with /v1 (default: the teacher's)", "URL", default=None
    )
    reader_model: str | None = argument(
        "name of the reader at its endpoint (default: the teacher reads)", "NAME", default=None
    )
    reader_api_key_env: str = argument(
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
        "share of the bridges that describe what they begin with instead of naming it", "SHARE", default=0.3
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
    source_name: str = argument("data_source of the rows, and the prefix of their ids", "NAME", default="own")
    samples: Positive = argument(
        "times that the reader is asked in each check", "N", default=3, rare=CHECKING
    )
    right: Positive = argument(
        "of the --samples answers, how many must be right with the passages", "N", default=2, rare=CHECKING
    )
    topk: Positive = argument(
        "passages of a search in which a question's own must be", "K", default=10, rare=CHECKING
    )
    neighbours: From0Count = argument(
        "other passages in which the reader looks for another answer", "N", default=10, rare=CHECKING
    )
    check_standalone: bool = argument(
        "let the reader judge, too, whether a question makes sense by itself", default=False, rare=CHECKING
    )
    near_duplicates: Share = argument(
        "similarity from which two questions are duplicates; 0: only if they are equal",
        "SIMILARITY",
        default=0.8,
        rare=CHECKING,
    )
    estimate: bool = argument("only print what the run would take", default=False, rare=COST)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _flags_fit(self) -> QuestionsArguments:
        if self.reader_url is not None and self.reader_model is None:
            raise ValueError("--reader-url needs --reader-model, the name of the model there")
        body = json_body("--reader-body", self.reader_body)
        if self.reader_model is None and (body or self.reader_price_in or self.reader_price_out):
            raise ValueError("--reader-body and --reader-price-* need --reader-model: the teacher reads now")
        if self.reader_url is None and self.reader_api_key_env != READER_KEY:
            raise ValueError("--reader-api-key-env needs --reader-url: at --base-url --api-key-env counts")
        if self.right > self.samples:
            raise ValueError(f"--right {self.right} is more than --samples {self.samples}")
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
                body=json_body("--body", self.body),
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
                right=min(self.right, self.samples),  # a larger one is refused above
                topk=self.topk,
                neighbours=self.neighbours,
                standalone=self.check_standalone,
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
        """The model that verifies; None if the teacher does so itself."""
        if self.reader_model is None:
            return None
        return ModelSpec(
            self.reader_url or self.base_url,
            self.reader_model,
            key_variable=self.api_key_env if self.reader_url is None else self.reader_api_key_env,
            body=json_body("--reader-body", self.reader_body),
            price_in=self.reader_price_in,
            price_out=self.reader_price_out,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 questions` and return its exit status.

    The status is 0 when all questions are written, 3 if the run was stopped early or a server did not answer
    (the reason is printed), and 1 if the run could not begin.
    """
    return read_and_run(COMMAND, QuestionsArguments, make_questions, arguments, _DESCRIPTION, _EPILOG)


async def make_questions(args: QuestionsArguments) -> int:
    """Check files and servers, write the missing questions, and print a summary; returns the exit status.

    With --estimate only the forecast is printed, for which the model servers need not run. --check-only ends
    after the checks, beside --estimate after those of the forecast. Raises RunError if a check fails or the
    run cannot be opened.
    """
    spec = args.spec()
    pool = check_start(spec, asks_models=not args.estimate)
    if args.check_only:
        are_asked = not (args.estimate or args.trust_env)
        servers = "all servers answer" if are_asked else "the search answers, the models were not asked"
        work = "the forecast can be made" if args.estimate else f"questions would be written into {args.out}"
        print(f"all checks passed: {work}, {servers}")
        return 0
    if args.estimate:
        await plan_questions(spec, pool=pool)
        return 0
    result = await write_questions(spec, pool=pool)
    _print_summary(args.out, result)
    return ExitStatus.STOPPED if result.stopped or result.card["open"] else ExitStatus.DONE


def check_start(spec: QuestionsSpec, *, asks_models: bool) -> PassagePool | None:
    """Check the corpus, the prompt and all servers.

    The models are asked only if `asks_models` is set and no proxy is used, which may know hosts that this
    machine does not. Returns the corpus; None if its files are unknown. Raises StartError with all problems.
    """
    pool = None
    with StartChecks() as checks:
        checks.run_on_all(lambda paths: check_first_rows(Corpus(paths)), spec.corpus)
        if spec.corpus and not checks.problems:  # else one fault of a file would be reported twice
            pool = checks.run(read_corpus, spec)
        checks.run(load_with_prompt, spec.protocol, None)
        if spec.prompt is not None:  # a wrong protocol must not hide a fault of the prompt
            checks.run(load_with_prompt, "rag_r1_mq", spec.prompt)
        if spec.verification.similarity:
            checks.run(require_library)
        attempts: list[Callable[[], Any]] = [
            lambda: asyncio.run(try_servers(try_search(retriever_of(spec), pool)))
        ]
        flags = ("--base-url", "--teacher-model"), ("--reader-url", "--reader-model")
        for model, (flag, model_flag) in zip((spec.teacher, spec.reader), flags, strict=True):
            if model is not None and asks_models and not spec.limits.trust_env:
                server = ModelServer(
                    model.url, model.key_variable, model.model, flag=flag, model_flag=model_flag
                )
                attempts.append(partial(check_replies, server))
        for attempt in begin_checks(*attempts):
            checks.run(attempt)
    return pool


def _print_summary(out: Path, result: QuestionsResult) -> None:
    """Print what was refused and kept, the usage of the models, and what to do next."""
    card = result.card
    for line in summary_lines(card):
        print(line)
    print(f"{out}: data_card.md says what the questions are made of and what nobody has verified")
    if result.stopped:
        print(stop_message(result.stopped, f"{card['open']:,} drafts are open"))
    elif card["open"]:
        # Any of the reasons would do; the least one is the same whatever the order of the answers.
        reason = terminal_text(min(outcome.detail for outcome in result.outcomes if outcome.is_open))
        print(f"{card['open']:,} drafts are open ({reason}); the same command goes on with them")


if __name__ == "__main__":
    sys.exit(main())
