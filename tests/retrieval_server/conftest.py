"""A corpus of 20 passages, indexes of it, and tiny random BERT models. Nothing is downloaded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrieval_server.encode import vector_files
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.folder.manifest import MANIFEST, sha256_of_file
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.index_source import IndexSource

ROOT = Path(__file__).parents[2]
TOWNS = "Ulm Trier Kassel Lübeck Bremen Passau Worms Jena Celle Halle".split()
RIVERS = "Donau Mosel Fulda Trave Weser Inn Rhein Saale Aller Elster".split()
PASSAGES = [
    {"id": f"town-{i}", "contents": f'"{town}"\n{town} is a town in the valley of the river {river}.'}
    for i, (town, river) in enumerate(zip(TOWNS, RIVERS, strict=True))
] + [
    {
        "id": f"river-{i}",
        "contents": f'"{river}"\nThe {river} carries barges with timber; it is {i + 3} miles wide.',
    }
    for i, river in enumerate(RIVERS)
]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "towns.jsonl", PASSAGES)


def build_options(corpus: Path, out: Path, backend: str = "bm25", **more: object) -> BuildOptions:
    """Of a build without a progress bar; ``more`` replaces what is set here."""
    return BuildOptions(
        **{"corpus": corpus, "out": out, "backend": backend, "device": "cpu", "progress": False, **more}
    )


def dense_options(corpus: Path, encoder: Path, out: Path, **more: object) -> BuildOptions:
    """Those of a dense index that is encoded on the processor; ``more`` replaces them."""
    return build_options(corpus, out, "dense", **{"encoder": str(encoder), **more})


def build(corpus: Path, out: Path, backend: str = "bm25", **more: object) -> Path:
    """Builds an index; returns its folder."""
    build_index(build_options(corpus, out, backend, **more))
    return out


def shelf_of(folder: Path, **options: dict[str, object]) -> Path:
    """Indexes in one folder, by name with the options of each: the same ids, texts signed with the name."""
    for name, more in options.items():
        rows = [{"id": row["id"], "contents": f"{row['contents']} ({name})"} for row in PASSAGES]
        build(write_jsonl(folder / f"{name}.jsonl", rows), folder / name, **more)
    return folder


def run_python(code: str, *args: object, **environment: str) -> str:
    """What this code prints in a process of its own, which has to end with status 0."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def python_process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this code, when it has printed a line; it is ended by closing its input."""
    command = [sys.executable, "-c", code, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.communicate()


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Applies ``change`` to what the file holds."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


async def until(condition: Callable[[], object]) -> None:
    """Waits until this holds."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def bm25_index(corpus, tmp_path_factory) -> Path:
    return build(corpus, tmp_path_factory.mktemp("indexes") / "bm25")


@pytest.fixture(scope="session")
def bm25(bm25_index) -> IndexSource:
    return IndexSource.open(bm25_index)


@pytest.fixture(scope="session")
def make_bert(tmp_path_factory) -> Callable[..., Path]:
    """make_bert(name, pooling=None): a random 2-layer BERT in a folder of that name.

    With ``pooling`` the folder also gets the sentence-transformers configuration of a published model.
    """
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    split = pre_tokenizers.BertPreTokenizer()
    texts = [row["contents"].lower() for row in PASSAGES] + ["query: passage: represent this sentence ulm?"]
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    vocabulary = {word: i for i, word in enumerate([*special.values(), *sorted(words)])}
    words_to_ids = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words_to_ids.normalizer = normalizers.Lowercase()
    words_to_ids.pre_tokenizer = split
    words_to_ids.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_to_ids, model_max_length=64, **special)

    def make(name: str, pooling: str | None = None, seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp("models") / name
        folder.mkdir()
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.5,  # far apart from each other, so that a wrong pooling shows
        )
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if pooling is not None:
            kinds = "sentence_transformers.models."
            modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
            described = [
                {"idx": i, "name": str(i), "path": path, "type": kinds + kind}
                for i, (path, kind) in enumerate(modules)
            ]
            (folder / "modules.json").write_text(json.dumps(described))
            (folder / "2_Normalize").mkdir()
            (folder / "1_Pooling").mkdir()
            modes = {
                f"pooling_mode_{name}": name.startswith(pooling) for name in ("cls_token", "mean_tokens")
            }
            modes |= {"word_embedding_dimension": 32, "pooling_mode_max_tokens": False}
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
        return folder

    return make


@pytest.fixture(scope="session")
def make_cross_encoder(make_bert, tmp_path_factory) -> Callable[[int], Path]:
    """make_cross_encoder(labels): a random cross-encoder that gives so many labels for a pair."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    def make(labels: int):
        bert = make_bert(f"for-{labels}-labels")
        folder = tmp_path_factory.mktemp("cross-encoder")
        # Weights as large as the BERT's would multiply the rounding of a product to more than 1e-6.
        config = AutoConfig.from_pretrained(bert, num_labels=labels, initializer_range=0.1)
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_bge(make_bert) -> Path:
    return make_bert("bge-small-en-v1.5")


@pytest.fixture(scope="session")
def encoder(tiny_bge) -> Encoder:
    return Encoder.create(str(tiny_bge), EncoderOptions(), device="cpu")


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def contents_without_times(folder: Path) -> dict[str, object]:
    """The files of a dense index; of the manifest what does not depend on the clock."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for row in manifest["dense"].get("recall", {}).get("rows", ()):
        row["ms"] = 0
    return {**contents(folder), MANIFEST: manifest}


@pytest.fixture
def interrupted(monkeypatch) -> Callable[[BuildOptions], list[str]]:
    """interrupted(options): stops that build in its third block of 8; the texts encoded from then on."""
    encode, encoded, stops = Encoder.encode_passages, [], [True]

    def watched(self, passages, batch_size=64):
        if passages != ["probe"]:
            if stops and len(encoded) >= 16:
                raise KeyboardInterrupt
            encoded.extend(passages)
        return encode(self, passages, batch_size)

    def interrupt(options: BuildOptions) -> list[str]:
        monkeypatch.setattr(vector_files, "BLOCK", 8)
        monkeypatch.setattr(Encoder, "encode_passages", watched)
        with pytest.raises(KeyboardInterrupt):
            build_index(options)
        assert not options.out.exists() and len(encoded) == 16
        stops.clear()
        encoded.clear()
        return encoded

    return interrupt


@pytest.fixture(scope="session")
def dense_index(corpus, tiny_bge, tmp_path_factory) -> Path:
    return build(corpus, tmp_path_factory.mktemp("indexes") / "dense", "dense", encoder=str(tiny_bge))


@contextmanager
def serving(load: Callable[[], IndexSource], **settings) -> Iterator:
    """A TestClient of the app, when its index is loaded."""
    from fastapi.testclient import TestClient

    from retrieval_server.server.app import create_app

    with TestClient(create_app(load, **settings), raise_server_exceptions=False) as client:
        for _ in range(3000):
            if client.get("/ready").status_code == 200:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("the index was not ready within 30 s")
        yield client


@pytest.fixture(scope="module")
def client(bm25) -> Iterator:
    with serving(lambda: bm25) as ready:
        yield ready


@pytest.fixture(scope="session")
def serve() -> Callable:
    """The context manager ``serving``, for tests that need an app of their own."""
    return serving


class ServerProcess:
    """start_retrieval.py in a process of its own."""

    def __init__(self, flags: list[str], environment: dict[str, str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "retrieval_server/start_retrieval.py", *flags, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
        )

    @property
    def resident(self) -> int:
        """Bytes of memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def wait_until_ready(self) -> None:
        with httpx.Client() as client:  # one: httpx.get makes one each time, which takes 50 ms of CPU
            while True:
                assert self.process.poll() is None, "the server ended"
                try:
                    if client.get(self.url + "/ready").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)


@contextmanager
def server_process(*flags: str | Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with these flags, when it is ready; it has to end with status 0."""
    server = ServerProcess([str(flag) for flag in flags], environment)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(300)
    assert server.process.returncode == 0


@pytest.fixture(scope="session")
def start_server() -> Callable:
    """The context manager ``server_process``."""
    return server_process
