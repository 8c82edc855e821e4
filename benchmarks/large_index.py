"""Measures time and memory for building, starting and serving an index of millions of passages.

    python benchmarks/large_index.py --work outputs/large --passages 5000000

The benchmark invents passages of 100 words with random vectors (of `--dimension`), so that the encoder's
speed does not matter, and builds and serves them with the project's own commands. Every step is a separate
process, whose wall and processor seconds and peak resident memory are measured from outside. Encoding is done
for a quarter of the passages and for all of them, to show that its peak memory does not grow. The server is
started with the files in the page cache, and then queried until it has sent about 50,000 passages. Resident
memory is read from /proc/PID/smaps, with the mapping of the text as a separate figure. 5 million passages
need 12 GB of disk, which are freed at the end unless `--keep` is given. MB are 2^20 bytes. Linux only.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.large_search import await_ready, read_through  # noqa: E402
from benchmarks.measured_steps import measure, processor_seconds  # noqa: E402
from rag_r1.runs.markdown import print_table  # noqa: E402
from rag_r1.system.child_processes import free_port  # noqa: E402

if TYPE_CHECKING:
    from retrieval_server.folder.manifest import EncoderSection

#: Number of files of the corpus; the first one is the quarter.
FILES = 4
#: Words of a passage, passages of a response, and queries in all.
WORDS, TOPK, QUERIES = 100, 100, 512
MB = 2**20


def write_corpus(folder: Path, passages: int) -> None:
    """Write FILES files of JSONL, with numbered titles and texts of random words."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioustrnlmdkp", k=draw.randint(2, 9))) for _ in range(30_000)]
    # Ten words are drawn at once, which is faster.
    phrases = [" ".join(draw.choices(words, k=10)) for _ in range(50_000)]
    for index in range(FILES):
        with (folder / f"{index}.jsonl").open("w", encoding="utf-8") as stream:
            for row in range(passages * index // FILES, passages * (index + 1) // FILES):
                text = " ".join(draw.choices(phrases, k=WORDS // 10))
                stream.write(f'{{"id": "{row}", "contents": "\\"Page {row}\\"\\n{text}"}}\n')


def write_encoder(folder: Path, dimension: int) -> None:
    """Write a random BERT of one layer, with which the server encodes queries. Nothing is downloaded."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokens = [*special.values(), *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=dimension,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=dimension,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    fast_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    fast_tokenizer.save_pretrained(folder)


class RandomEncoder:
    """An encoder that returns random unit vectors; `section` has the settings of a real one."""

    def __init__(self, section: EncoderSection):
        self.section = section
        self._generator = np.random.default_rng(0)

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Return a vector for each passage, float32: (passages, dimension)."""
        vectors = self._generator.standard_normal((len(passages), self.section.dimension), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_vectors(parts: Path, encoder: Path) -> None:
    """Encode the passages in the folder `parts`, with random vectors instead of the model's."""
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.encode.options import EncoderOptions
    from retrieval_server.indexing.parts import EncodingPart, encode_part

    section = Encoder.create(str(encoder), EncoderOptions(pooling="mean"), "cpu").section
    encode_part(parts, EncodingPart(1, 1), RandomEncoder(section))


def resident(pid: int, mapping: str) -> tuple[float, float]:
    """Return the resident MB of a process: of all its memory, and of the mapping of one file."""
    total = mapped = 0
    is_mapping = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):  # the line of a mapping: its addresses, and its file if it has one
            is_mapping = fields[-1].endswith(mapping)
        elif fields[0] == "Rss:":
            total += int(fields[1])
            mapped += int(fields[1]) if is_mapping else 0
    return total / 1024, mapped / 1024


def ask(url: str, queries: list[str]) -> int:
    """Send the queries, and return the number of passages in the response."""
    body = json.dumps({"queries": queries, "topk": TOPK}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return sum(map(len, json.load(response)["result"]))


def serve(index: Path) -> list[tuple[str, str]]:
    """Start the server, query it and stop it; returns the rows of the table. Raises SystemExit if it ends."""
    for path in filter(Path.is_file, index.rglob("*")):
        read_through(path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "retrieval_server/start_retrieval.py", "--index", index, "--port", port]
    started = time.perf_counter()
    process = subprocess.Popen([*map(str, command), "--deadline", "600"], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        await_ready(url, process)
        ready = time.perf_counter() - started
        rows = [
            ("start to ready, files in cache", f"{ready:.1f} s"),
            ("start to ready: processor", f"{processor_seconds(process.pid):.1f} s"),
            *_resident_rows("ready", process.pid),
        ]
        draw = random.Random(1)
        sent = peak = 0
        for _ in range(QUERIES // 32):
            sent += ask(url, ["".join(draw.choices("abcdefghij ", k=40)) + "x" for _ in range(32)])
            peak = max(peak, resident(process.pid, "passages.arrow")[1])
        rows += _resident_rows(f"after {sent:,} passages sent", process.pid)
        return [*rows, ("text, maximum meanwhile", f"{peak:.0f} MB")]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _resident_rows(moment: str, pid: int) -> list[tuple[str, str]]:
    """Return the rows with the present memory of the server and of its text."""
    total, text = resident(pid, "passages.arrow")
    return [
        (f"{moment}: process, resident", f"{total:.0f} MB"),
        (f"{moment}: text, resident", f"{text:.0f} MB"),
    ]


def main() -> int:
    """Build and measure the index, and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, metavar="DIR", help="work folder; must not exist yet"
    )
    parser.add_argument("--passages", type=int, default=5_000_000, help="(default %(default)s)")
    parser.add_argument(
        "--dimension", type=int, default=64, help="dimension of the vectors (default %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files")
    parser.add_argument("--step", choices=["encoder", "vectors"], help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    corpus, encoder, index = (args.work / name for name in ("corpus", "encoder", "index"))
    if args.step == "encoder":
        write_encoder(encoder, args.dimension)
        return 0
    if args.step == "vectors":
        write_vectors(args.parts, encoder)
        return 0
    if args.work.exists():
        parser.error(f"--work {args.work} already exists")
    build, script = ROOT / "retrieval_server" / "build_index.py", Path(__file__).resolve()
    try:
        write_corpus(corpus, args.passages)
        # The encoder is made in a separate process, so that this one stays small: the peak of a child
        # includes the memory that its parent had when it started the child.
        arguments = (script, "--work", args.work, "--dimension", args.dimension)
        measure("encoder", *arguments, "--step", "encoder")
        steps = []
        quarter = ("quarter", args.passages // FILES, corpus / "0.jsonl")
        for name, share, source in (quarter, ("all", args.passages, corpus)):
            parts = args.work / name
            steps += [
                measure(f"passages, {share:,}", build, "passages", "--corpus", source, "--parts", parts),
                measure(f"encode, {share:,}", *arguments, "--step", "vectors", "--parts", parts),
            ]
        steps.append(
            measure(f"merge, {args.passages:,}", build, "merge", "--parts", args.work / "all", "--out", index)
        )
        print_table(["step", "wall s", "processor s", "peak MB"], (step.row() for step in steps), "llll")
        sizes = {path.name: path.stat().st_size / MB for path in index.iterdir() if path.is_file()}
        print()
        files = [(f"{name}, on disk", f"{size:.0f} MB") for name, size in sorted(sizes.items())]
        print_table(["server", ""], [*files, *serve(index)], "ll")
    finally:
        if not args.keep:
            shutil.rmtree(args.work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
