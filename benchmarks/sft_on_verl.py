"""Compares SFT through veRL's trainer with the demo's own warm start in plain torch.

    python benchmarks/sft_on_verl.py --work outputs/sft_on_verl

Both start from the same base (`--base`, or the base of the demo's warm starts), learn from the same traces
(`rag_r1.demo.trace_records`: mixed strategies, right and wrong ones) in the same number of batches of the
same number of questions, and are measured on the same held-out questions:

    plain torch  as in `python -m rag_r1.demo.warm_start`: one pass over the traces in order, with Muon and
                 AdamW
    veRL         the traces as records, then `rag-r1 sft-data` and `rag-r1 sft` with recipes/rag_r1/sft/demo:
                 one pass over the shuffled rows, with AdamW alone, since veRL builds one optimizer for all
                 weights

`--layout` chooses between whole traces and cut samples. There are about twice as many cut samples as traces,
so a batch then has twice as many rows, and the number of steps is the same. Finished parts are not repeated,
and veRL's training resumes from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rag_r1.demo.phase_trainer import train
from rag_r1.demo.policy import PROTOCOLS, load_policy, save_policy
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.trace_records import BATCH, write_records
from rag_r1.demo.warm_start import WARM, measure, warm_batches
from rag_r1.demo.world import KINDS, demo_data, demo_protocol
from rag_r1.runs import markdown

ROOT = Path(__file__).resolve().parents[1]
PROMPT = ROOT / "rag_r1" / "demo" / "prompt.txt"
COLUMNS = (*KINDS, "all", "well-formed", "turns")


def run(*command: str | Path) -> None:
    """Run a module of this project as a user would. Raises SystemExit if it fails."""
    arguments = ["-m", *map(str, command)]
    print("$", " ".join(["python", *arguments]), flush=True)
    if status := subprocess.run([sys.executable, *arguments], cwd=ROOT).returncode:
        sys.exit(f"error: {command[0]} ended with status {status}")


def base_of(work: Path, args: argparse.Namespace) -> Path:
    """Return the folder of the base: the one of --base, or one in `work`, which is made unless it exists."""
    if args.base:
        return args.base.resolve()
    base = work / "base"
    if not (base / "config.json").exists():
        paths = ("--base", base, "--out", work / "beside-the-base")
        run("rag_r1.demo.warm_start", "--seed", str(args.seed), *paths)
    return base


def warm_start(work: Path, base: Path, args: argparse.Namespace) -> Path:
    """Fine-tune the base in plain torch as the demo does, unless that is done; returns the folder."""
    folder = work / f"torch-{_name(args)}"
    if not (folder / "config.json").exists():
        model, tokenizer = load_policy(base)
        protocol, gold = demo_protocol(args.protocol), args.mix == "gold"
        batches = warm_batches(tokenizer, protocol, gold, args.seed, Counter(), args.batches)
        train(model, batches, replace(WARM, steps=args.batches), "plain torch")
        save_policy(folder, model, tokenizer)
    return folder


def _name(args: argparse.Namespace) -> str:
    """Return the part of a folder's name that depends on the traces."""
    return f"{args.protocol}-{args.mix}-{args.batches}-{args.seed}"


def sft_data(work: Path, base: Path, args: argparse.Namespace) -> Path:
    """Make veRL's rows from the warm start's traces, unless they exist; returns the folder."""
    traces = work / f"traces-{_name(args)}" / "traces.jsonl"
    data = work / f"data-{_name(args)}-{args.layout}"
    if not (data / "sft_summary.json").exists():
        write_records(traces, demo_protocol(args.protocol), args.mix, args.batches, args.seed)
        selection = ["--metric", "any", "--thought-only", "1", "--validation", "0", "--format", "verl"]
        source = ["--traces", traces, "--model", base, "--protocol", args.protocol, "--prompt", PROMPT]
        run("rag_r1.sft.data", *source, *selection, "--layout", args.layout, "--out", data)
    return data


def sft_on_verl(work: Path, base: Path, data: Path, args: argparse.Namespace) -> Path:
    """Fine-tune the base with veRL's SFT trainer, unless that is done; returns the exported model."""
    summary = json.loads((data / "sft_summary.json").read_text(encoding="utf-8"))
    rows = summary["splits"]["train"]["samples"]
    batch = max(1, rows // args.batches)
    out = work / f"verl-{data.name}"
    if not (out / "model").exists():
        run(
            "rag_r1.sft.train_command", "--recipe", "recipes/rag_r1/sft/demo", "--data", data,
            f"model.path='{base}'", f"trainer.default_local_dir='{out}'", f"data.train_batch_size={batch}",
            "trainer.test_freq=-1", "trainer.save_freq=50", "trainer.max_ckpt_to_keep=1", *args.overrides,
        )  # fmt: skip
    return out / "model"


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return the held-out figures as a Markdown table, with one row for each policy."""
    head = ["policy", *COLUMNS]
    cells = [[name, *(f"{figures[column]:.2f}" for column in COLUMNS)] for name, figures in rows.items()]
    return "\n".join(markdown.table(head, cells, "l" * len(head)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one base with plain torch and with veRL, and print the figures of both."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--work", type=Path, required=True, help="folder for base, traces, data and policies")
    parser.add_argument("--base", type=Path, help="policy folder to start from (default: made in --work)")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="rag_r1_mq")
    parser.add_argument("--mix", choices=("mixed", "gold"), default="mixed", help="strategies of the traces")
    parser.add_argument("--layout", choices=("cut", "whole"), default="whole")
    batches = f"of {BATCH} questions (default: {WARM.steps}, as the warm start)"
    parser.add_argument("--batches", type=int, default=WARM.steps, help=batches)
    parser.add_argument("--seed", type=int, default=0, help="of traces and world (default %(default)s)")
    parser.add_argument("overrides", nargs="*", help="key=value for `rag-r1 sft`, e.g. optim.lr=5e-4")
    args = parser.parse_args(arguments)
    work = args.work.resolve()
    base = base_of(work, args)
    warm = warm_start(work, base, args)
    trained = sft_on_verl(work, base, sft_data(work, base, args), args)
    held_out, protocol = demo_data(args.seed), demo_protocol(args.protocol)
    figures = {
        name: measure(folder, protocol, held_out.val, WorldSearch(held_out.passages))
        for name, folder in (("base", base), ("plain torch", warm), (f"veRL, {args.layout}", trained))
    }
    for decoding in ("greedy", "sampled"):
        rows = {name: by_decoding[decoding] for name, by_decoding in figures.items()}
        _, torch_row, verl_row = rows.values()
        largest = max(abs(torch_row[kind] - verl_row[kind]) for kind in (*KINDS, "all"))
        difference = verl_row["all"] - torch_row["all"]
        print(f"\nheld-out exact match, {decoding} ({len(held_out.val)} questions)\n\n{table(rows)}")
        print(f"\nveRL - plain torch, all: {difference:+.3f}; of a kind at most {largest:.3f}")


if __name__ == "__main__":
    main()
