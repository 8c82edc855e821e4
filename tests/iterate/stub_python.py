"""In the place of Python on the machines of a loop: leaves behind what each command does, in three units.

    stub_python -m MODULE WORDS...

A unit appends a line to `work.log` in the command's folder by one write, and a start goes on after the lines
that are there. So a unit that is done twice, or by two processes, shows in that file. What a command makes
depends on the files that it is given and on the index that the server serves meanwhile.

STUB_KILL=STEP:N kills the caller before unit N of this step (3: when all is written), and then goes on as an
orphan for a minute. STUB_FAIL=STEP fails.
"""

import hashlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

UNITS = 3


def of(flag: str) -> list[str]:
    """The values of a flag: `--flag a b`, `--flag=a`."""
    values = [word.partition("=")[2] for word in WORDS if word.startswith(f"{flag}=")]
    for place, word in enumerate(WORDS):
        if word == flag:
            for value in WORDS[place + 1 :]:
                if value.startswith("--"):
                    break
                values.append(value)
    return values


def override(key: str) -> str:
    """The value of a Hydra override that counts."""
    return [word.partition("=")[2].strip("'") for word in WORDS if word.startswith(f"{key}=")][-1]


def content(path: str) -> str:
    """A hash of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    files = sorted(p for p in Path(path).rglob("*") if p.is_file()) if os.path.isdir(path) else [Path(path)]
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def served(url: str) -> str:
    """The encoder of the index that is served, by the end of its path."""
    with urllib.request.urlopen(f"{url}/ready") as answer:
        return "/".join(json.load(answer)["encoder"].split("/")[-4:])


def at(step: str, point: int) -> None:
    """Kill the caller if this is the point."""
    if os.environ.get("STUB_KILL") == f"{step}:{point}":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if os.environ.get("STUB_FAIL") == step:
        print("the reason")
        sys.exit(3)


def units(folder: Path, step: str, facts: list[str]) -> None:
    """The units of work that are not done."""
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "work.log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    done = os.pread(log, 1 << 20, 0).count(b"\n")
    for unit in range(done, UNITS):
        at(step, unit)
        time.sleep(float(os.environ.get("STUB_S", "0")))
        os.write(log, f"unit {unit} from {' '.join(facts)}\n".encode())


def train_agent(out: Path, step: str) -> None:
    url = override("rag_r1.retriever.url")
    start = override("actor_rollout_ref.model.path")
    query = override("rag_r1.retriever.agentic_input")
    units(out, step, [content(start), served(url), query])
    model = out / "stage1" / "checkpoints" / "global_step_3" / "actor" / "huggingface"
    model.mkdir(parents=True, exist_ok=True)
    (model / "model.safetensors").write_bytes((out / "work.log").read_bytes())
    (model / "config.json").write_text("{}")
    (out / "stage1" / "finished").write_text(f"{model}\n")


def make_data(out: Path, step: str) -> None:
    units(out, step, [content(of("--model")[0]), served(of("--retriever-url")[0])])
    for name in ("train.jsonl", "passages.jsonl"):
        (out / name).write_bytes((out / "work.log").read_bytes())
    usage = {"requests": 5, "prompt_tokens": 50, "completion_tokens": 500}
    summary = {"trajectories": {"usage": usage}, "candidates": {"searches": 7}, "selection": {"rows": 3}}
    (out / "summary.json").write_text(json.dumps(summary))


def train_retriever(out: Path, step: str) -> None:
    start = [content(path) for path in of("--model") if os.path.isdir(path)]  # not a name of the recipe
    units(out, step, [content(of("--rows")[0]), content(of("--corpus")[0]), *start])
    (out / "model").mkdir(exist_ok=True)
    (out / "model" / "model.safetensors").write_bytes((out / "work.log").read_bytes())


def build_index(out: Path, step: str) -> None:
    if out.exists():
        sys.exit("error: the index is there already")
    part = out.with_name("index.part")
    encoder = of("--encoder")[0]
    units(part, step, [content(encoder), content(of("--corpus")[0])])
    of_encoder = {"name": encoder, "sha256": content(encoder)}
    of_encoder |= {"separator": "[SEP]", "max_length": 64, "query_prefix": ""}
    corpus = {"sha256": content(of("--corpus")[0])}
    manifest = {"count": 3, "corpus": corpus, "dense": {"encoder": of_encoder}}
    (part / "manifest.json").write_text(json.dumps(manifest))
    part.rename(out)


def evaluate(out: Path, step: str) -> None:
    url = of("--retriever-url")[0]
    units(out, step, [content(of("--model")[0]), served(url)])
    em = int(content(str(out / "work.log"))[:2], 16) / 256
    figure = {"value": em, "low": em / 2, "high": min(1, em * 2)}
    means = dict.fromkeys(("em", "f1", "queries"), {"mean": figure})
    means["recall"] = {"mean": {"value": None, "low": None, "high": None}}
    counts = {"all": {"questions": 4, "episodes": 4, "failed": 0}}
    (out / "journal").mkdir(exist_ok=True)
    line = {"ask": "q", "turn": 0, "usage": {"requests": 1, "prompt_tokens": 20, "completion_tokens": 10}}
    (out / "journal" / "exchanges.ndjson").write_text(f"{json.dumps(line)}\n" * 2)
    (out / "report.json").write_text(json.dumps({"figures": means, "counts": counts}))


COMMANDS = {
    "rag_r1.cli stages": train_agent,
    "rag_r1.cli retriever data": make_data,
    "rag_r1.cli retriever train": train_retriever,
    "retrieval_server.build_index": build_index,
    "rag_r1.cli eval": evaluate,
}

if __name__ == "__main__":
    first = next(place for place, word in enumerate(sys.argv) if word.startswith("--"))
    command, WORDS = " ".join(sys.argv[2:first]), sys.argv[first:]
    target = Path(of("--out")[0])
    name = "/".join(target.parts[-3:-1])
    COMMANDS[command](target, name)
    print(f"{command} is done")
    at(name, UNITS)
