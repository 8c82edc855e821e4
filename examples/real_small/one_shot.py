"""Writes data for fine-tuning the one-search baseline: passages in the prompt, then the answer.

    python -m examples.real_small.one_shot --questions train.jsonl --index data/index --model MODEL --out sft

The prompt is made by the code of `rag-r1 eval --baseline one_shot`: it searches once, with the question
itself, and puts the returned passages before the question. Every sample has the gold answer, whether or not
the passages contain it, as is usual when a reader is fine-tuned on retrieved passages (RAG).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from rag_r1.data.rows import QuestionRow
from rag_r1.data.sft_rows import Piece, SftRow, write_sft_rows
from rag_r1.demo.traces.turns import turn
from rag_r1.evaluation.baselines import Condition, baseline
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import prepare_evaluation
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, Share, argument, read_arguments
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.one_shot import prepare_one_shot
from rag_r1.rollouts.requests import make_request, seeded_fraction
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks
from rag_r1.tools.retrieval.local_server import check_served_index, retrieval_process

#: The protocol and the default prompt of the samples.
PROTOCOL = "rag_r1_mq"
PROMPT = Path(__file__).parents[2] / "recipes" / "real_small" / "one_shot.txt"
#: An address to which no request is sent.
_NO_SERVER = "http://127.0.0.1:1"
_SPLITS = ("train", "validation")
_IN_FLIGHT = 64


class OneShotArguments(Arguments):
    """The questions, the index and the model, and the size of the search results in the prompt."""

    questions: Path = argument("JSON lines of `rag-r1 passage-questions`", "FILE")
    index: Path = argument("index of the same passages", "DIR")
    model: Path = argument("model that will be trained; its tokenizer counts the passages' tokens", "DIR")
    out: Path = argument("folder for train.parquet and validation.parquet", "DIR")
    prompt: Path = argument("prompt with {documents} and {question}", "FILE", default=PROMPT)
    topk: Positive = argument(
        "number of passages of the search (the default: as many as a turn with two queries has)", default=4
    )
    tokens: Positive = argument("most tokens of the passages", default=448)
    validation: Share = argument("share of the questions for the validation set", "SHARE", default=0.05)
    seed: int = argument("seed of the split", default=0)


@command_main(RunError, ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    prog = "python -m examples.real_small.one_shot"
    args = read_arguments(OneShotArguments, arguments, prog=prog, description=__doc__, check=_check_start)
    _check_start(args)
    args.out.mkdir(parents=True, exist_ok=True)
    with retrieval_process(args.index, args.out / "retriever.log") as url:
        run_setup = prepare_evaluation(_evaluation(args, url))
        condition = baseline("one_shot", run_setup.setup)
        rows = asyncio.run(_make_samples(run_setup.questions.rows, condition))
    held_out = {row.id for row in rows if seeded_fraction(args.seed, "validation", row.id) < args.validation}
    for split, is_validation in zip(_SPLITS, (False, True), strict=True):
        split_rows = [row for row in rows if (row.id in held_out) == is_validation]
        write_sft_rows(args.out / f"{split}.parquet", split_rows)
        print(f"{args.out / split}.parquet: {len(split_rows):,} samples")
    return 0


def _check_start(args: OneShotArguments) -> None:
    """Raise StartError with the problems of the questions, the index, the model, the prompt and --out."""
    with StartChecks() as checks:
        checks.run(check_out, args.out)
        checks.run(refuse_replaced, [args.questions], args.out, [f"{split}.parquet" for split in _SPLITS])
        checks.run(check_served_index, args.index, "--index")
        evaluation = _evaluation(args, _NO_SERVER)
        with all_problems(evaluation, {}):
            prepare_evaluation(evaluation)


def _evaluation(args: OneShotArguments, url: str) -> EvalArguments:
    """Return the arguments of an evaluation with the retrieval server at `url`, whose prompts are those of
    the samples."""
    values = {
        "questions": [args.questions],
        "out": args.out,
        "model": str(args.model),
        "tokenizer": str(args.model),
        "base_url": f"{_NO_SERVER}/v1",  # required, but no request is sent
        "retriever_url": url,
        "protocol": PROTOCOL,
        "prompt": str(args.prompt),
        "overrides": [
            f"rag_r1.retriever.topk={args.topk}",
            f"rag_r1.agent.max_query_observation_tokens={args.tokens}",
        ],
    }
    return args.converted(EvalArguments, values)


async def _make_samples(questions: Sequence[QuestionRow], condition: Condition) -> list[SftRow]:
    """Return the sample of each question, in order; at most _IN_FLIGHT are made at a time."""
    limit = asyncio.Semaphore(_IN_FLIGHT)
    progress = tqdm(total=len(questions), desc="searches", unit="question", mininterval=5)

    async def make_counted(question: QuestionRow) -> SftRow:
        async with limit:
            sample = await make_sample(question, condition)
        progress.update()
        return sample

    with progress:
        return await asyncio.gather(*map(make_counted, questions))


async def make_sample(question: QuestionRow, condition: Condition) -> SftRow:
    """Return the sample of a question: the prompt of the condition `one_shot`, and the gold answer.

    Raises DataError if the search fails.
    """
    setup = condition.setup(question)
    request = make_request(question, setup.protocol, own_prompt=True, search_first=True)
    prepared = await prepare_one_shot(request, setup)
    if failures := prepared.search.failures:
        message = f"the search for {question.question!r} failed: {failures[0].detail}"
        raise DataError(f"{message}: see retriever.log in --out, and run the command again")
    assert prepared.request.messages is not None  # own_prompt
    text = turn("I know enough.", "answer", question.golds[0])
    codec = prepared.setup.codec
    return SftRow(
        id=question.id,
        question=question.question,
        protocol=PROTOCOL,
        kind="question + passages -> answer",
        messages=prepared.request.messages,
        pieces=(Piece(text, generated=True, trained=True),),
        context_tokens=len(prepared.setup.prompt_ids(question.question, prepared.request.messages)),
        target_tokens=len(codec.encode(text)),
    )


if __name__ == "__main__":
    sys.exit(main())
