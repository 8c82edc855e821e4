"""Prepares the agent of `rag-r1 serve --demo`.

The agent is the policy of the last demo run, which searches the index of that run. If there has been no run,
it is the embedded warm start, for which a world is written and indexed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rag_r1.config.recipes import RECIPES
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.demo.eval_arguments import demo_eval_arguments
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import OUTPUTS, protocol_of
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.serving.arguments import ChatAgentArguments, with_demo_limits
from rag_r1.serving.launch import say, start_search
from rag_r1.serving.page import ExampleQuestion, PageInfo, model_name
from rag_r1.tools.retrieval.local_server import retrieval_process

#: Protocol of the embedded warm start that is served if there is no demo run.
_EMBEDDED = "rag_r1_mq"
#: The seed of its world.
_SEED = 0
#: The folder below `--out` into which its world is written at each start.
_WORLD = "chat-demo"
#: Number of example questions of each kind on the page.
_EXAMPLES = 2
#: Descriptions of the kinds of questions.
_KINDS = {
    "one_hop": "one fact",
    "bridge": "a fact about the result of a search",
    "both": "two facts",
    "comparison": "a comparison",
}
#: Number of concurrent episodes in vLLM. A batch must have room for all of their prompts, because vLLM
#: crashes on a CPU if it splits the prefill of a seeded request.
_CONCURRENCY = 32
_CONTEXT_TOKENS = 512
_VLLM = ("--max-num-seqs", str(_CONCURRENCY), "--max-num-batched-tokens", str(_CONTEXT_TOKENS * _CONCURRENCY))
_UNTRAINED = (
    "This is the embedded policy: it knows the format, but has not learned to search yet, so it is often "
    'wrong. Train it with "rag-r1 demo", in a few minutes; "rag-r1 serve --demo" in the same folder '
    "then serves the trained one."
)


def start(args: ChatAgentArguments, stack: ExitStack) -> tuple[EvalArguments, PageInfo]:
    """Start a retrieval server for the demo's world, which runs until `stack` is closed.

    Returns the arguments with which the policy is served, and the texts of the page. Raises RunError if the
    server does not start.
    """
    run = last_demo_run(OUTPUTS)
    if run is not None:
        say(f"the policy of {run.folder}")
        index = run.folder / "index"
        url = stack.enter_context(retrieval_process(index, args.out / "search.log"))
        name, step = model_name(str(run.model))
        page_info = _page_info(run, note="", model=name, step=step, index=str(index))
    else:
        say(_UNTRAINED)
        run = DemoRun(args.out / _WORLD, policy_path(_EMBEDDED), _EMBEDDED)
        shutil.rmtree(run.folder, ignore_errors=True)
        write_demo(run.folder / "data", demo_protocol(_EMBEDDED), _SEED, train=1)
        url = start_search(run.folder / "data" / "corpus.jsonl", run.folder, stack)
        name = "the embedded policy, before training"
        page_info = _page_info(run, note=_UNTRAINED, model=name, step=None, index="BM25 of its world")
    # The file of questions is a placeholder, since a chat reads none.
    evaluation = demo_eval_arguments(run.model, Path("-"), run.protocol, url, args.out)
    return with_demo_limits(args, evaluation, _VLLM), page_info


def _page_info(run: DemoRun, *, note: str, model: str, step: int | None, index: str) -> PageInfo:
    """Return the texts of the page about the policy of `run` and its world, with example questions."""
    questions = run.questions()
    return PageInfo(
        "an invented world",
        note,
        examples_of(questions),
        model=model,
        step=step,
        index=index,
        golds={row.question: row.golds for row in questions},
    )


def examples_of(questions: Iterable[QuestionRow]) -> tuple[ExampleQuestion, ...]:
    """Return the first `_EXAMPLES` questions of each kind, grouped by kind."""
    by_kind: dict[str, list[ExampleQuestion]] = {kind: [] for kind in _KINDS}
    for row in questions:
        kind = row.data_source.rpartition("/")[2]
        if len(by_kind.setdefault(kind, [])) < _EXAMPLES:
            by_kind[kind].append(ExampleQuestion(row.question, _KINDS.get(kind, kind)))
    return tuple(example for examples in by_kind.values() for example in examples)


@dataclass(frozen=True)
class DemoRun:
    """A world with a policy for it, from a finished run of the demo or with the embedded warm start."""

    #: Contains the folder `data` with the files of the world.
    folder: Path
    #: Folder of the policy.
    model: Path
    #: Name of the protocol.
    protocol: str

    def questions(self) -> list[QuestionRow]:
        """Read the held-out questions of the world."""
        return [QuestionRow.from_row(row) for row in read_rows(self.folder / "data" / "val.parquet")]


def last_demo_run(outputs: Path) -> DemoRun | None:
    """Return the demo run below `outputs` with the newest policy; None if there is none.

    Only runs that have a policy, an index and a recipe count.
    """
    runs: dict[float, DemoRun] = {}  # by the time of the policy's weights
    for folder in outputs.glob("*"):
        recipe = RECIPES / "demo" / f"{folder.name}.yaml"
        checkpoint = newest_checkpoint(folder / "checkpoints")
        weights = checkpoint and checkpoint / "actor" / "huggingface" / "model.safetensors"
        if weights and weights.is_file() and recipe.is_file() and (folder / "index").is_dir():
            runs[weights.stat().st_mtime] = DemoRun(folder, weights.parent, protocol_of(folder.name))
    return runs[max(runs)] if runs else None
