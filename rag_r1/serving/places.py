"""What a chat needs, started for it: a search, a model, and what the page tells about both.

    --demo          the demo's policy and world: of the last demo run, else the embedded warm start
    --documents     an index of a folder of the user's own, and a retrieval server for it
    otherwise       the retrieval server that the user names

The model is served by vLLM (rag_r1/evaluation/serving.py), unless --base-url names a server.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from rag_r1.afterwards import newest_checkpoint
from rag_r1.demo.evaluation import evaluation
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import OUTPUTS
from rag_r1.demo.server import ServerError, build_index, retrieval_server
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.evaluation.evaluate import EvalArguments
from rag_r1.evaluation.evaluated_model import resolved, served
from rag_r1.evaluation.run_folder import RunError
from rag_r1.recipe_files import RECIPES
from rag_r1.rows import QuestionRow, read_rows
from rag_r1.serving.app import About
from rag_r1.serving.arguments import AgentArguments, evaluation_of, with_demo_limits

#: The embedded warm start that is served without a demo run, and its world's seed.
_EMBEDDED, _SEED = "rag_r1_mq", 0
#: What is written anew at each start, below --out. No other module has these names: --out may be a folder
#: in which the user has an `index`, `documents` or the runs of the demo.
_INDEX, _CORPUS, _WORLD = "chat-index", "chat-documents", "chat-demo"
#: Questions that the demo suggests.
_EXAMPLES = 6
#: Tokens of the demo's context, and its episodes at a time in vLLM. A batch has room for all of their
#: prompts: vLLM on a CPU crashes if it splits the prefill of a seeded request.
_CONTEXT, _AT_A_TIME = 512, 32
_VLLM = (
    *("--max-num-seqs", str(_AT_A_TIME)),
    *("--max-num-batched-tokens", str(_CONTEXT * _AT_A_TIME)),
)
_UNTRAINED = (
    "This is the embedded policy: it knows the format, but has not learned to search yet, so it is often "
    'wrong. Train it with "rag-r1 demo", in a few minutes; "rag-r1 serve --demo" in the same folder '
    "then serves the trained one."
)


@dataclass(frozen=True)
class Place:
    """An agent that is ready to be asked, as the arguments of `rag-r1 eval`, and what is told about it."""

    evaluation: EvalArguments
    about: About


@contextmanager
def started(given: AgentArguments) -> Iterator[Place]:
    """Everything that the arguments name, for as long as the block runs. Raises RunError."""
    given.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(given.out / ".lock", timeout=0))
        except Timeout as error:
            raise RunError(f"another chat uses the folder {given.out}: choose another --out") from error
        try:
            asked, about = _demo(given, stack) if given.demo else _own(given, stack)
            asked = resolved(asked)
            if asked.base_url is None:
                _say(f"starting vLLM for {asked.model}; its log: {asked.out / 'vllm.log'}")
            asked = stack.enter_context(served(asked))
        except ServerError as error:
            raise RunError(str(error)) from error
        yield Place(asked, replace(about, protocol=asked.protocol, history=given.earlier))


def _own(given: AgentArguments, stack: ExitStack) -> tuple[EvalArguments, About]:
    asked = evaluation_of(given)
    if given.documents is None:
        return asked, About(what="the passages of its retrieval server")
    url = _indexed(given.documents, given.out, stack, given.skip_bad_files)
    return asked.model_copy(update={"retriever_url": url}), About(
        what=f"the documents in {given.documents.name}"
    )


def _indexed(folder: Path, out: Path, stack: ExitStack, skip_bad_files: bool) -> str:
    """The address of a retrieval server for a folder of documents, which is read anew at each start."""
    from rag_r1.tools.documents import index_folder

    _say(f"reading the documents in {folder}")
    shutil.rmtree(out / _INDEX, ignore_errors=True)
    try:
        corpus = index_folder(folder, out / _CORPUS, skip_bad_files=skip_bad_files)
    except ValueError as error:
        raise RunError(f"--documents {error}") from error
    return _searched(corpus, out, stack)


def _searched(corpus: Path, out: Path, stack: ExitStack) -> str:
    """The address of a retrieval server for a corpus, with its index and log in `out`."""
    _say("building the BM25 index")
    index = build_index(corpus, out / _INDEX, "--backend", "bm25")
    return stack.enter_context(retrieval_server(index, out / "search.log"))


def _demo(given: AgentArguments, stack: ExitStack) -> tuple[EvalArguments, About]:
    run = last_demo_run(OUTPUTS)
    if run is not None:
        _say(f"the policy of {run.folder}")
        url = stack.enter_context(retrieval_server(run.folder / "index", given.out / "search.log"))
        model, protocol, note, examples = run.model, run.protocol, "", run.examples()
    else:
        _say(_UNTRAINED)
        model, protocol, note = policy_path(_EMBEDDED), _EMBEDDED, _UNTRAINED
        folder = given.out / _WORLD
        shutil.rmtree(folder, ignore_errors=True)
        data = write_demo(folder / "data", demo_protocol(protocol), _SEED, train=1)
        url = _searched(folder / "data" / "corpus.jsonl", folder, stack)
        examples = tuple(question.text for question in data.val[:_EXAMPLES])
    words = evaluation(model, Path("-"), protocol, url, given.out)
    return with_demo_limits(given, words, _VLLM), About("an invented world", note, examples)


@dataclass(frozen=True)
class DemoRun:
    """A finished run of the demo."""

    folder: Path
    model: Path
    protocol: str

    def examples(self) -> tuple[str, ...]:
        """Some of its held-out questions."""
        rows = islice(read_rows(self.folder / "data" / "val.parquet"), _EXAMPLES)
        return tuple(QuestionRow.from_row(row).question for row in rows)


def last_demo_run(outputs: Path) -> DemoRun | None:
    """The demo run in a folder of `outputs` whose policy is the newest; None if there is none with a policy,
    an index and a recipe."""
    found = []
    for folder in outputs.glob("*"):
        recipe = RECIPES / "demo" / f"{folder.name}.yaml"
        checkpoint = newest_checkpoint(folder / "checkpoints")
        weights = checkpoint and checkpoint / "actor" / "huggingface" / "model.safetensors"
        if weights and weights.is_file() and recipe.is_file() and (folder / "index").is_dir():
            protocol = yaml.safe_load(recipe.read_text(encoding="utf-8"))["rag_r1"]["protocol"]
            found.append((weights.stat().st_mtime, DemoRun(folder, weights.parent, protocol)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
