"""Starts what `rag-r1 serve --demo` serves: the policy of the last demo run, else the embedded warm start."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml

from rag_r1.config.recipes import RECIPES
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.demo.eval_spec import eval_arguments
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import OUTPUTS
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.serving.arguments import ChatAgentArguments, with_demo_limits
from rag_r1.serving.launch import say, start_search
from rag_r1.serving.page import ExampleQuestion, PageInfo, model_name
from rag_r1.tools.retrieval.local_server import retrieval_process

#: The embedded warm start that is served without a demo run, and its world's seed.
_EMBEDDED, _SEED = "rag_r1_mq", 0
#: The demo's world is written anew at each start, below --out.
_WORLD = "chat-demo"
#: Questions of each kind that the demo suggests, and what the kinds are called.
_EXAMPLES = 2
_KINDS = {
    "one_hop": "one fact",
    "bridge": "a fact about the result of a search",
    "both": "two facts",
    "comparison": "a comparison",
}
#: Tokens of the demo's context, and its episodes at a time in vLLM. A batch has room for all of their
#: prompts: vLLM on a CPU crashes if it splits the prefill of a seeded request.
_CONTEXT, _AT_A_TIME = 512, 32
_VLLM = (*("--max-num-seqs", str(_AT_A_TIME)), *("--max-num-batched-tokens", str(_CONTEXT * _AT_A_TIME)))
_UNTRAINED = (
    "This is the embedded policy: it knows the format, but has not learned to search yet, so it is often "
    'wrong. Train it with "rag-r1 demo", in a few minutes; "rag-r1 serve --demo" in the same folder '
    "then serves the trained one."
)


def start(args: ChatAgentArguments, stack: ExitStack) -> tuple[EvalArguments, PageInfo]:
    """The demo's policy, with a retrieval server for its world that runs until `stack` is closed."""
    run = last_demo_run(OUTPUTS)
    if run is not None:
        say(f"the policy of {run.folder}")
        url = stack.enter_context(retrieval_process(run.folder / "index", args.out / "search.log"))
        model, protocol, note, questions = run.model, run.protocol, "", run.questions()
        name, step = model_name(str(run.model))
        index = str(run.folder / "index")
    else:
        say(_UNTRAINED)
        model, protocol, note = policy_path(_EMBEDDED), _EMBEDDED, _UNTRAINED
        folder = args.out / _WORLD
        shutil.rmtree(folder, ignore_errors=True)
        write_demo(folder / "data", demo_protocol(protocol), _SEED, train=1)
        url = start_search(folder / "data" / "corpus.jsonl", folder, stack)
        questions = held_out_questions(folder / "data")
        name, step, index = "the embedded policy, before training", None, "BM25 of its world"
    evaluation = eval_arguments(model, Path("-"), protocol, url, args.out)
    page_info = PageInfo(
        "an invented world",
        note,
        examples_of(questions),
        model=name,
        step=step,
        index=index,
        golds={row.question: row.golds for row in questions},
    )
    return with_demo_limits(args, evaluation, _VLLM), page_info


def held_out_questions(data: Path) -> list[QuestionRow]:
    """The held-out questions in the folder of a demo's data."""
    return [QuestionRow.from_row(row) for row in read_rows(data / "val.parquet")]


def examples_of(questions: Iterable[QuestionRow]) -> tuple[ExampleQuestion, ...]:
    """The first questions of each kind, by kind."""
    by_kind: dict[str, list[ExampleQuestion]] = {kind: [] for kind in _KINDS}
    for row in questions:
        kind = row.data_source.rpartition("/")[2]
        if len(by_kind.setdefault(kind, [])) < _EXAMPLES:
            by_kind[kind].append(ExampleQuestion(row.question, _KINDS.get(kind, kind)))
    return tuple(example for examples in by_kind.values() for example in examples)


@dataclass(frozen=True)
class DemoRun:
    """A finished run of the demo."""

    folder: Path
    model: Path
    protocol: str

    def questions(self) -> list[QuestionRow]:
        """Its held-out questions."""
        return held_out_questions(self.folder / "data")


def last_demo_run(outputs: Path) -> DemoRun | None:
    """The demo run in a folder of `outputs` whose policy is the newest; None if there is none with a policy,
    an index and a recipe."""
    runs = []
    for folder in outputs.glob("*"):
        recipe = RECIPES / "demo" / f"{folder.name}.yaml"
        checkpoint = newest_checkpoint(folder / "checkpoints")
        weights = checkpoint and checkpoint / "actor" / "huggingface" / "model.safetensors"
        if weights and weights.is_file() and recipe.is_file() and (folder / "index").is_dir():
            protocol = yaml.safe_load(recipe.read_text(encoding="utf-8"))["rag_r1"]["protocol"]
            runs.append((weights.stat().st_mtime, DemoRun(folder, weights.parent, protocol)))
    return max(runs, key=lambda pair: pair[0])[1] if runs else None
