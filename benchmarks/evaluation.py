"""Compares the speed of `rag-r1 eval` with that of a loop that answers one question after the other.

    OMP_NUM_THREADS=1 python benchmarks/evaluation.py

Both arms use the same vLLM server with the demo's policy, the same retrieval server (BM25 over the demo's
world), the same protocol and limits, and greedy decoding.

    serial   the design of the released evaluation scripts: it generates a turn, searches, appends, and
             begins the next question after the answer; it keeps no records
    eval     the command from its start to its last record, with questions in flight, tape, records and card
    whole    the command to its end, with the report (bootstrap and pictures, whose time hardly depends on the
             number of questions)
    ratio    seconds of `serial` divided by those of `eval`
    same     number of equal answers; the last bits of vLLM's results depend on the other requests in a batch

The loading of the tokenizer is not included. After a warm-up, each round runs both arms in alternating order.
vLLM caches prefixes, as it does by default, and its cache is emptied before each arm; with
`--no-prefix-cache` each turn reads its whole context again. The retrieval server has no cache.

The exit status is 1 if the median ratio is below --bar.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx

from rag_r1.agent.records import read_records
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import World, demo_protocol, make_questions, make_world, to_row
from rag_r1.evaluation.baselines import agent_condition
from rag_r1.evaluation.condition_run import run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import prepare_evaluation
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.protocols import Answer, Document, Search
from rag_r1.rollouts.session import RunSetup
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

PROTOCOL = "rag_r1_mq"
#: The most tokens of prompt and response together.
CONTEXT = 512
TOPK = 2
#: The demo's limits, as in recipes/demo/_common.yaml.
LIMITS = ("rag_r1.agent.max_turns=3", "rag_r1.agent.max_turn_tokens=48", f"rag_r1.retriever.topk={TOPK}")
PROMPT = Path(__file__).resolve().parents[1] / "rag_r1" / "demo" / "prompt.txt"


def run_serial(
    rows: Sequence[QuestionRow], run_setup: RunSetup, engine: str, retriever: str
) -> list[str | None]:
    """Answer one question after the other, and return the answers; `engine` and `retriever` are URLs."""
    with httpx.Client(timeout=300, trust_env=False) as client:
        return [_answer(client, row.question, run_setup, engine, retriever) for row in rows]


def _answer(
    client: httpx.Client, question: str, run_setup: RunSetup, engine: str, retriever: str
) -> str | None:
    """Play one episode; returns its answer, or None if it has none."""
    setup = run_setup.setup
    context = setup.prompt_ids(question)
    for turn in range(setup.budget.max_turns + 1):
        body = {
            "model": "policy",
            "prompt": context,
            "max_tokens": min(setup.budget.max_turn_tokens, CONTEXT - len(context)),
            "temperature": 0.0,
            "stop": list(setup.protocol.stop),
            "include_stop_str_in_output": True,
            "return_token_ids": True,
        }
        if body["max_tokens"] < 1:
            return None
        ids = client.post(f"{engine}/completions", json=body).json()["choices"][0]["token_ids"]
        context += ids
        action = setup.protocol.parse(setup.codec.decode(ids))
        if isinstance(action, Answer):
            return action.text
        if not isinstance(action, Search) or turn == setup.budget.max_turns:
            return None
        queries = {"queries": list(action.queries), "topk": TOPK, "return_scores": True}
        results = client.post(f"{retriever}/retrieve", json=queries).json()["result"]
        found = [[hit["document"] for hit in hits] for hits in results]
        documents = [[Document(hit["id"], hit["contents"]) for hit in hits] for hits in found]
        context += setup.codec.encode(setup.protocol.observation(action.queries, documents))
    return None


def run_eval(args: EvalArguments, run_setup: RunSetup, out: Path) -> list[str | None]:
    """Run the command's evaluation, and return its answers in the order of the questions.

    Raises SystemExit if it fails.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = asyncio.run(run_condition(args, run_setup, agent_condition(run_setup.setup), out))
    if status:
        raise SystemExit(f"the evaluation ended with status {status}; see {out}")
    return [record["answer"] for record in read_records(out / "trajectories")]


def forget_prefixes(engine: str) -> None:
    """Empty vLLM's prefix cache, so that no arm profits from the one before it."""
    httpx.post(engine.removesuffix("/v1") + "/reset_prefix_cache", trust_env=False).raise_for_status()


def records_written_at(out: Path) -> float:
    """Return the time at which a run wrote its records, in seconds since the epoch."""
    return (out / "trajectories" / "records.jsonl").stat().st_mtime


def write_questions(world: World, count: int, seed: int, folder: Path) -> list[QuestionRow]:
    """Write `questions.parquet` and the passages, `corpus.jsonl`, and return the questions as rows."""
    protocol = demo_protocol(PROTOCOL)
    questions = make_questions(world, count, seed)
    rows = [to_row(question, index, "test", protocol) for index, question in enumerate(questions)]
    write_rows(folder / "questions.parquet", rows)
    lines = (json.dumps(passage) + "\n" for passage in world.passages)
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    return rows


def measure(args: argparse.Namespace, folder: Path) -> list[float]:
    """Run the rounds and print a line for each; returns the ratios."""
    rows = write_questions(make_world(args.seed, "test", 200, 45), args.questions, args.seed, folder)
    index = build_index(folder / "corpus.jsonl", folder / "index", "--backend", "bm25")
    policy = args.policy or policy_path(PROTOCOL)
    options = ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(args.slots)]
    options += ["--max-num-batched-tokens", str(args.slots * CONTEXT)]
    options.append("--no-enable-prefix-caching" if args.no_prefix_cache else "--enable-prefix-caching")
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for POST /reset_prefix_cache
    ratios = []
    with (
        retrieval_process(index, folder / "retrieval.log", "--cache-size", "0") as retriever,
        vllm_server(policy, folder / "vllm.log", options=options) as engine,
    ):
        arguments = EvalArguments(
            questions=[folder / "questions.parquet"],
            out=folder,
            model="policy",
            base_url=engine,
            tokenizer=str(policy),
            retriever_url=retriever,
            protocol=PROTOCOL,
            prompt=str(PROMPT),
            in_flight=args.in_flight,
            max_prompt_tokens=64,
            max_response_tokens=CONTEXT - 64,
            overrides=[*LIMITS, "rag_r1.retriever.cache_size=0"],
        )
        run_setup = prepare_evaluation(arguments)
        few_questions = replace(run_setup.questions, rows=run_setup.questions.rows[:16])
        run_serial(rows[:4], run_setup, engine, retriever)
        run_eval(arguments, replace(run_setup, questions=few_questions), folder / "warm-up")
        heads = ("serial s", "a second", "eval s", "a second", "whole s")
        print(f"{'':8} {' '.join(f'{head:>9}' for head in heads)} {'ratio':>7} {'same':>9}")
        for round_number in range(1, args.rounds + 1):
            seconds, answers = {}, {}
            for name in ("serial", "eval") if round_number % 2 else ("eval", "serial"):
                forget_prefixes(engine)
                started = time.time()
                if name == "serial":
                    answers[name] = run_serial(rows, run_setup, engine, retriever)
                    seconds[name] = time.time() - started
                else:
                    answers[name] = run_eval(arguments, run_setup, folder / f"round{round_number}")
                    seconds["whole"] = time.time() - started
                    seconds[name] = records_written_at(folder / f"round{round_number}") - started
            ratios.append(seconds["serial"] / seconds["eval"])
            same = sum(a == b for a, b in zip(answers["serial"], answers["eval"], strict=True))
            print(
                f"round {round_number:<2} {seconds['serial']:9.2f} {len(rows) / seconds['serial']:9.2f} "
                f"{seconds['eval']:9.2f} {len(rows) / seconds['eval']:9.2f} {seconds['whole']:9.2f} "
                f"{ratios[-1]:6.2f}x {same:4} of {len(rows)}",
                flush=True,
            )
    return ratios


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 1 if the median ratio is below --bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--questions", type=int, default=500, help="questions of a round (default %(default)s)")
    add("--rounds", type=int, default=3, help="of both arms (default %(default)s)")
    add("--in-flight", type=int, default=256, help="questions at a time in eval (default %(default)s)")
    add("--slots", type=int, default=64, help="sequences that vLLM decodes at once (default %(default)s)")
    add("--no-prefix-cache", action="store_true", help="vLLM reads the whole context in each turn")
    add("--policy", type=Path, metavar="DIR", help="a demo policy (default: the warm start)")
    add("--seed", type=int, default=0, help="of world and questions (default %(default)s)")
    add("--bar", type=float, default=0.0, help="least ratio (default %(default)s)")
    args = parser.parse_args(argv)
    if min(args.questions, args.rounds, args.in_flight, args.slots) < 1:
        parser.error("--questions, --rounds, --in-flight and --slots must be 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(args, Path(folder))
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f}" + (f", bar {args.bar:g}" if args.bar else ""))
    return int(ratio < args.bar)


if __name__ == "__main__":
    sys.exit(main())
