"""The recorded runs without a model: help, rollouts, data, corpora, indexes, tools, recipes, preflight.

Each function is a run in its own folder; runs.py lists them by name.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

from . import inside
from .workplace import ROOT, Workplace, flags

#: File of raw samples (in the folder `shared_data`) -> its source.
SAMPLES = {
    "2wikimultihopqa_raw_20.json": "2wikimultihopqa",
    "asearcher_frames_20.jsonl": "asearcher",
    "bamboogle_flashrag_20.jsonl": "bamboogle",
    "bamboogle_raw_20.csv": "bamboogle",
    "gsm8k_20.jsonl": "gsm8k",
    "hotpotqa_raw_distractor_20.json": "hotpotqa",
    "medmcqa_20.jsonl": "medmcqa",
    "medqa_us_4options_20.jsonl": "medqa",
    "medqa_zh_4options_20.jsonl": "medqa_zh",
    "musique_ans_raw_20.jsonl": "musique",
    "nq_flashrag_20.jsonl": "nq",
    "popqa_flashrag_20.jsonl": "popqa",
    "popqa_raw_with_paragraphs_20.jsonl": "popqa",
    "triviaqa_flashrag_20.jsonl": "triviaqa",
}
#: Subcommands that are not listed in a table of a `--help`.
HIDDEN = (("eval", "report"), ("eval", "compare"), ("eval", "modes"), ("eval", "sigma"))
_LISTED = re.compile(r"^  ([a-z][a-z-]+) {2,}\S", re.MULTILINE)


def shared_data() -> Path | None:
    """Return the folder of the published data, $RAG_R1_DATA or shared/data beside the checkout, or None."""
    folder = Path(os.environ.get("RAG_R1_DATA") or ROOT.parent / "shared" / "data")
    return folder.resolve() if (folder / "raw_samples").is_dir() else None


def help_texts(workplace: Workplace) -> None:
    """Run `--help` of every command and subcommand, and two invalid calls."""

    def show_help(*commands: str) -> None:
        text = workplace.rag_r1(*commands, "--help")
        if re.match(r"usage: .* COMMAND", text):
            for command in _LISTED.findall(text):
                show_help(*commands, command)

    show_help()
    for commands in HIDDEN:
        show_help(*commands)
    workplace.rag_r1("evaluate")
    workplace.rag_r1("eval", "--no-such-flag")


def rollouts(workplace: Workplace) -> None:
    """Play each shipped protocol in the world of the demo, scripted and greedy; writes records and rows."""
    for name in inside.protocols():
        workplace.write_lines(f"{name}-scripted.jsonl", inside.scripted_rollouts(name))
        if greedy := inside.greedy_rollouts(name):
            workplace.write_lines(f"{name}-greedy.jsonl", greedy)


def data(workplace: Workplace) -> None:
    """Run `data` on made files and, if they exist, on samples of every source and a published set."""
    rows = [
        {"id": f"t{i}", "question": f"Question {i}?", "golden_answers": [f"a{i}", "x"]} for i in (1, 2, 2, 3)
    ]
    workplace.write_lines("train.jsonl", [*rows, {"question": "Who is it?", "answer": "y"}, {"question": ""}])
    workplace.write_lines(
        "validation.jsonl", [{"id": "v", "question": "who is it", "golden_answers": ["y", "z"]}]
    )
    files = ("--train", "questions:made=train.jsonl", "--validation", "questions:made=validation.jsonl")
    workplace.rag_r1("data", *files, "--out", "refused")  # it has bad rows
    workplace.rag_r1("data", *files, "--out", "overlap", "--skip-bad-rows")
    lenient = ("--skip-bad-rows", "--overlap", "drop")
    for protocol in inside.protocols():
        workplace.rag_r1("data", *files, *lenient, "--out", f"made-{protocol}", "--protocol", protocol)
    if (shared := shared_data()) is None:
        return
    (workplace.folder / "shared").symlink_to(shared)
    train, validation = [], []
    for number, (name, source) in enumerate(SAMPLES.items()):
        is_train = number % 2
        sample = f"{source}:s{number}=shared/raw_samples/{name}@15"
        (train if is_train else validation).extend(["--train" if is_train else "--validation", sample])
    workplace.rag_r1(
        "data", *train, *validation, *lenient, "--out", "samples", "--protocol", "rag_r1_sq", "--seed", 3
    )
    published = "shared/rag_r1/hotpotqa_train_filter_mq"
    both = ("--train", f"questions:h={published}/train_data.json@400")
    both += ("--validation", f"questions:h={published}/test_data.json")
    workplace.rag_r1("data", *both, *lenient, "--out", "published")
    (workplace.folder / "shared").unlink()


def corpus(workplace: Workplace) -> None:
    """Run `corpus check`, `probe-passages` and `documents`."""
    inside.write_demo_files(workplace.folder)
    rows = [
        {"id": "lost", "question": "Which town?", "answer": "Berlin"},
        {"id": "is", "question": "Is it?", "answer": "yes"},
        {"id": "ids", "question": "x?", "answer": "x", "supporting_ids": ["1", "no-such-id"]},
        {"id": "titles", "question": "y?", "answer": "y", "supporting_titles": ["Rome"]},
    ]
    workplace.write_lines("made.jsonl", rows)
    files = ("--corpus", "corpus.jsonl", "--no-progress")
    with inside.reading_policies() as (reading, _):
        arguments = ("--data", "questions.parquet", "made.jsonl", *files, "--out", "checked")
        workplace.rag_r1("corpus", "check", *arguments, "--retriever-url", reading.url)
    workplace.rag_r1(
        "probe-passages", "--data", "questions.parquet", *files, "--out", "passages.json", "--random", 5
    )
    folder = workplace.folder / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("Ulm is a town on the Danube.\n\n" * 40, encoding="utf-8")
    (folder / "b.md").write_text("# Heat\n\nHeat was directed by Michael Mann.\n", encoding="utf-8")
    (folder / "c.html").write_text(
        "<title>T</title><script>x</script><p>The <b>river</b></p>", encoding="utf-8"
    )
    (folder / "d.pdf").write_bytes(b"no PDF")
    for path in folder.iterdir():
        os.utime(path, (0, 0))  # a corpus records the times of the files from which it was made
    command = ("documents", "--folder", "documents", "--no-progress")
    workplace.rag_r1(*command, "--out", "refused")  # a file cannot be read
    workplace.rag_r1(*command, "--out", "read", "--skip-bad-files")


def index(workplace: Workplace) -> None:
    """Run `index build` and `index split`, and record the responses of the index's server."""
    inside.write_demo_files(workplace.folder)
    build = ("index", "build", *flags({"corpus": "corpus.jsonl", "out": "bm25", "backend": "bm25"}))
    workplace.rag_r1(*build)
    workplace.rag_r1(*build)  # refused, since the index exists
    workplace.rag_r1("index", "split", *flags({"index": "bm25", "out": "shards", "shards": 2}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with workplace.running("index", "serve", *flags({"index": "bm25", "port": port})):
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/ready")
        names = [fact.entity for question in inside.QUESTIONS[:3] for fact in question.lookups]
        bodies = {
            "/retrieve": {"queries": [*names, "", "zzz"], "topk": 3, "return_scores": True},
            "/retrieve?plain": {"queries": names[:1]},
            "/queries": {"queries": names[:2], "k": 2},
            "/retrieve?bad": {"queries": 3},
        }
        answers = {path: _response(f"{url}{path.partition('?')[0]}", body) for path, body in bodies.items()}
        workplace.write_json("answers.json", answers | {"/ready": _response(f"{url}/ready", None)})


def mcp(workplace: Workplace) -> None:
    """Run `mcp --tools` on a server over stdio, on one that lists nothing, and on a missing command."""
    server = inside.MCP_SERVER.relative_to(ROOT)
    (workplace.folder / "server.py").write_bytes((ROOT / server).read_bytes())
    workplace.rag_r1("mcp", "--tools", sys.executable, "-S", "server.py")
    workplace.rag_r1("mcp", "--tools", sys.executable, "-S", "server.py", "no-list")
    workplace.rag_r1("mcp", "--tools", "no-such-command")


def recipes(workplace: Workplace) -> None:
    """Run `recipes`: the list, some recipes as written and composed, a copy, and the table."""
    workplace.rag_r1("recipes", "list")
    for name in ("rag_r1/grpo", "demo/ppo_mq", "r1_searcher/stage1_qwen", "agentic_r/iterate"):
        workplace.rag_r1("recipes", "show", name)
    for name in ("rag_r1/ppo_mq", "agentic_rag/dapo_lora", "demo/memory_grpo"):
        workplace.rag_r1("recipes", "show", name, "--composed")
    workplace.rag_r1("recipes", "show", "rag_r1/gpro")
    workplace.rag_r1("recipes", "copy", "rag_r1/grpo", "mine.yaml")
    workplace.rag_r1("recipes", "table")


def training_checks(workplace: Workplace) -> None:
    """Run `train --check-only` on a recipe with only its server missing, and on one with many faults."""
    inside.write_demo_files(workplace.folder)
    data_files = ("data.train_files=questions.parquet", "data.val_files=questions.parquet")
    model = f"actor_rollout_ref.model.path={inside.copy_policy(workplace.folder)}"
    command = ("train", "--check-only", "--recipe", "demo/grpo", *data_files, model)
    workplace.rag_r1(*command, "rag_r1.protocol=rag_r1_sq", "rag_r1.retriever.url=http://127.0.0.1:9")
    workplace.rag_r1(
        *command, "rag_r1.protocol=no_such", "rag_r1.agent.max_turns=-1", "rag_r1.reward=[{term: nothing}]"
    )


def _wait(url: str, seconds: float = 120) -> None:
    """Wait until the address answers. Raises OSError if it does not answer in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _response(url: str, body: object) -> object:
    """Send a request and return the JSON of the response, or the status and the text of an error."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=60) as answer:
            return json.load(answer)
    except OSError as error:
        return [getattr(error, "code", str(error)), error.read().decode() if hasattr(error, "read") else ""]
