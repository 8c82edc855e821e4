"""Models of the Hugging Face Hub, wherever a folder is accepted.

A folder comes first: the Hub is asked only for a name of its form (`Qwen/Qwen2.5-7B-Instruct`) that is no
path here. What was downloaded before is taken from the Hub's cache, also without a network.
"""

from __future__ import annotations

import re
from pathlib import Path

from rag_r1.runs.errors import RunError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: Weights in forms that neither transformers nor vLLM needs.
_NOT_NEEDED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.pth", "original/*", "*.tflite"]


def is_hub_name(name: str) -> bool:
    """Is it the name of a repository, and no path on this machine?"""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def local_model(name: str) -> Path:
    """The folder of a model that is named by its folder or by the Hub's name, which is downloaded if it is
    not in the cache. Raises RunError if the Hub does not give it; a path that does not exist is returned."""
    if not is_hub_name(name):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=_NOT_NEEDED))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(
            f"{name} is no folder here, and the Hub does not give it ({reason}): check the name and the "
            f"network, download it where there is one (`hf download {name} --local-dir DIR`), or serve the "
            "model yourself and give --base-url"
        ) from error
