"""Recognises the names of models on the Hugging Face Hub, and downloads the models."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rag_r1.io.errors import first_line_of
from rag_r1.runs.errors import RunError

#: The name of a model on the Hub, owner/name.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: Weights in formats that neither transformers nor vLLM needs.
_UNUSED_FILES = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.pth", "original/*", "*.tflite"]


def is_hub_name(name: str) -> bool:
    """Return whether a text has the form of a Hub name (owner/name) and is not a path on this machine."""
    return _NAME.fullmatch(os.fspath(name)) is not None and not Path(name).exists()


def local_model(
    name: str,
    patterns: Sequence[str] | None = None,
    alternative: str = "serve the model yourself and give --base-url",
) -> Path:
    """Return the folder of a model, which is given by that folder or by a Hub name.

    A folder is returned even if it does not exist, since `model_folder` reports what is wrong with it. A
    model on the Hub is downloaded unless it is in the cache; with `patterns`, only the files that match one.
    Raises RunError, whose message ends with `alternative`, if the download fails.
    """
    if not is_hub_name(name):
        return Path(os.path.expanduser(name))  # Path.expanduser raises RuntimeError for an unknown user
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_UNUSED_FILES))
    # RuntimeError is raised by hf_xet, which downloads large files, the others by huggingface_hub and httpx.
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        raise RunError(
            f"{name} is not a folder here, and the Hub does not give it ({first_line_of(error)}): check the "
            f"name and the network, download it where there is one (`hf download {name} --local-dir DIR`), "
            f"or {alternative}"
        ) from error
