"""A small loop whose trainings are stubs (stub_python.py), and whose server is one of a few lines."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rag_r1.demo.policy import policy_path
from rag_r1.iterate import command
from rag_r1.iterate.server import manifest_facts
from tests.fakes.json_server import Asked, JsonStub

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_python.py")
#: Files that tell how the work went, not what came of it.
HOW = {"begun.json", "done.json", "log.txt", "state.json", "lock", "server.log"}


class StubServer:
    """Serves what `/reload` names, if that is an index, and tells so at `/ready`. `orders`: the folders that
    it was told to open; `lies`: facts that it tells in the place of those of its index."""

    def __init__(self) -> None:
        self.serves: dict[str, Any] = {}
        self.orders: list[str] = []
        self.lies: dict[str, Any] = {}
        self.busy = 0
        self._version = 0

    def reload(self, path: str) -> tuple[int, Any]:
        """The answer to an order."""
        if self.busy:
            self.busy -= 1
            return 409, {"error": "a reload is under way"}
        self.orders.append(path)
        if not (Path(path) / "manifest.json").is_file():
            return 422, {"error": "no such index. The old index keeps serving."}
        self.serves, self._version = manifest_facts(Path(path)), self._version + 1
        return 200, self.ready()

    def ready(self) -> dict[str, Any]:
        """The answer of `/ready`."""
        return {"status": "ready", "index_version": self._version, **self.serves, **self.lies}

    @contextmanager
    def run(self) -> Iterator[str]:
        """Its address, for the length of a block."""

        def answer(request: Asked) -> Any:
            if request.method == "GET":
                return self.ready()
            status, value = self.reload(request.body["path"])
            return status, json.dumps(value)

        with JsonStub(answer) as server:
            yield server.url


class StubLoop:
    """The files of a loop in `folder`, its recipe `loop.yaml` and its OUT `out`."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url
        self.out = folder / "out"
        self.recipe = folder / "loop.yaml"
        self.orders: list[str] = []
        python = folder / "python"
        python.write_text(f"#!{sys.executable} -SE\n{STUB.read_text()}")
        python.chmod(0o755)
        shutil.copytree(policy_path("rag_r1_mq"), folder / "model")
        (folder / "model" / "config.json").write_text("{}")
        (folder / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (folder / "first").mkdir()
        encoder = {"name": "first", "separator": "[SEP]", "max_length": 64, "query_prefix": ""}
        manifest = {"count": 3, "corpus": {"sha256": "0"}, "dense": {"encoder": encoder}}
        (folder / "first" / "manifest.json").write_text(json.dumps(manifest))
        for name in ("train.jsonl", "test.jsonl"):
            (folder / name).write_text('{"question": "Who?", "golden_answers": ["she"]}\n')
        (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "Paris"}\n')
        machine = {"python": str(python)}
        self.plan: dict[str, Any] = {
            "agent": {"model": f"{folder}/model", "recipe": "recipes/demo/grpo", **machine},
            "data": {"questions": [f"{folder}/train.jsonl"], "options": {"candidates": 25}},
            "retriever": {"recipe": str(ROOT / "recipes/agentic_r/retriever_cpu.yaml"), **machine},
            "index": {"first": f"{folder}/first", "corpus": [f"{folder}/corpus.jsonl"]},
            "server": {"url": url},
            "evaluation": {"questions": [f"{folder}/test.jsonl"]},
        }

    def words(self, *more: str) -> list[str]:
        """Arguments of `rag-r1 iterate`."""
        self.recipe.write_text(yaml.safe_dump(self.plan))
        return ["--recipe", str(self.recipe), "--out", str(self.out), *more]

    def run(self, *more: str) -> int:
        """Take the steps in this process; returns the exit status."""
        return command.main(self.words(*more))

    def start(self, *more: str, **environment: str) -> multiprocessing.Process:
        """Take the steps in a process of their own, a fork of this one."""

        def work(words: list[str]) -> None:
            os.environ.update(environment)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os._exit(command.main(words))

        process = multiprocessing.get_context("fork").Process(target=work, args=(self.words(*more),))
        process.start()
        return process

    def aside(self) -> Path:
        """Move OUT away, so that the loop can be taken again; returns where it is now."""
        whole = self.folder / "whole"
        shutil.move(self.out, whole)
        return whole

    def units(self) -> int:
        """Units of work that are done."""
        while True:
            try:
                return sum(path.read_bytes().count(b"\n") for path in self.out.rglob("work.log"))
            except FileNotFoundError:  # a folder got its final name meanwhile
                continue


def artefacts(out: Path) -> dict[str, bytes]:
    """What came of a loop: all files by name, with the targets of links."""
    files = (path for path in out.rglob("*") if path.is_file() and path.name not in HOW)
    contents = {path.relative_to(out).as_posix(): path.read_bytes() for path in files}
    links = (path for path in out.rglob("*") if path.is_symlink())
    return contents | {path.relative_to(out).as_posix(): os.readlink(path).encode() for path in links}


def facts(out: Path) -> Mapping[str, Any]:
    """The facts of each step that is done."""
    return {
        path.parent.relative_to(out).as_posix(): json.loads(path.read_text())["facts"]
        for path in sorted(out.rglob("done.json"))
    }
