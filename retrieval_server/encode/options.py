"""The options of an encoder: device, number format, runtime, and the settings of a new index."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from retrieval_server.errors import UserError
from retrieval_server.options import AtLeastOne, Flag, Group, Options

#: The flags of a dense index in `--help`.
DENSE = Group("dense")

Pooling = Literal["cls", "mean", "max", "lasttoken"]
POOLINGS = get_args(Pooling)

Device = Annotated[str | None, Flag("cpu, cuda, cuda:1, ... for the encoder (default: a GPU, if any)")]
DType = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    Flag(
        "number format of the encoder. bfloat16, float16: for GPUs; by torch on a CPU they are slower. int8: "
        "8-bit products on a CPU, by OpenVINO"
    ),
]
Runtime = Annotated[
    Literal["torch", "openvino"] | None,
    Flag(
        "library that computes the encoder. openvino: on CPUs, in float32, bfloat16 or int8; needs the extra "
        "`openvino` (default: torch, and openvino for --dtype int8)"
    ),
]
EncoderCache = Annotated[
    Path | None,
    # The path is made absolute because a replica on Ray runs in another folder.
    AfterValidator(lambda path: path and path.absolute()),
    Flag(
        "folder of the encoders that were converted for OpenVINO (default: rag-r1/encoders in "
        "$XDG_CACHE_HOME or ~/.cache)",
        metavar="DIR",
    ),
]


def _default_cache() -> Path:
    """Return the folder of converted encoders that the help of `--encoder-cache` names."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-r1" / "encoders"


@dataclass(frozen=True)
class OpenVinoOptions:
    """How OpenVINO is used."""

    #: The folder of the converted encoders.
    folder: Path = field(default_factory=_default_cache)
    #: The number of threads; None for one for each core.
    threads: int | None = None


def check_device(device: str | None) -> None:
    """Raise UserError for a device that torch does not know, or a CUDA device that it does not find.

    Whether devices of other kinds (`mps`, `xpu`) exist shows only when the model is loaded.
    """
    if device in (None, "cpu"):
        return
    import torch  # takes seconds

    try:
        torch_device = torch.device(device)
    except RuntimeError:
        raise UserError(f"--device {device}: torch knows no such device. Give cpu, cuda or cuda:1.") from None
    gpus = torch.cuda.device_count()
    if torch_device.type == "cuda" and (torch_device.index or 0) >= gpus:
        raise UserError(f"--device {device}: torch does not find it (GPUs: {gpus}). Give another, or cpu.")


def openvino_options(
    dtype: str,
    runtime: str | None,
    device: str | None,
    folder: Path | None = None,
    threads: int | None = None,
) -> OpenVinoOptions | None:
    """Return the settings of OpenVINO if it computes the encoder, and None if torch does.

    `folder` is for the converted encoders, and `threads` is the number of OpenVINO's threads; None leaves the
    defaults of `OpenVinoOptions`. Torch does not use `threads`. Raises ValueError for contradictory options.
    """
    if runtime is None:
        runtime = "openvino" if dtype == "int8" else "torch"
    if runtime == "torch":
        if dtype == "int8":
            raise ValueError("--dtype int8 is computed by OpenVINO: drop --runtime torch")
        if folder is not None:
            raise ValueError("--encoder-cache is for OpenVINO: drop it, or give --runtime openvino")
        return None
    if dtype == "float16":
        raise ValueError("--runtime openvino computes in float32, bfloat16 or int8, not in float16")
    if device not in (None, "cpu"):
        raise ValueError(f"--device {device}: OpenVINO (--runtime openvino, --dtype int8) is for the CPU")
    return OpenVinoOptions(folder or _default_cache(), threads)


class EncoderOptions(Options):
    """How a new index uses its encoder; None leaves a setting to the model's folder or family."""

    group = DENSE

    pooling: Annotated[
        Pooling | None, Flag("pooling of the token vectors, for a model folder that does not say")
    ] = None
    query_prefix: Annotated[
        str | None, Flag("text before every query; give its trailing space too", metavar="TEXT")
    ] = None
    passage_prefix: Annotated[str | None, Flag("text before every passage", metavar="TEXT")] = None
    separator: Annotated[
        str | None, Flag("text between the parts of a query that is made of several texts", metavar="TEXT")
    ] = None
    normalize: Annotated[bool | None, Flag("scale vectors to length 1 (default: as in training)")] = None
    max_length: Annotated[
        AtLeastOne | None,
        Flag("cut longer texts (default: the model's own limit, 512 at most)", metavar="TOKENS"),
    ] = None
