"""`rag-r1 model export-nf4`: exports a model trained over nf4 weights for vLLM and transformers.

The adapters were trained over the dequantised weights; combined with the original weights they are a
different policy. So the original weights are quantised again, which gives the same numbers as in training,
and the dequantised numbers are written as a separate model. The output folder is written atomically: it is
complete, or it does not exist.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic_settings import CliPositionalArg

from rag_r1.inference.model_folders import check_weights, has_weights, is_hub_name
from rag_r1.inference.nf4.checkpoint import SavedAdapters, read_adapters
from rag_r1.io.atomic_files import atomic_file, write_json
from rag_r1.io.bounded_json import read_json_file, read_json_object
from rag_r1.io.errors import first_line_of, reason_of
from rag_r1.io.hub import hub_answers
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, check_packages

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PretrainedConfig

PROG = "rag-r1 model export-nf4"
_DESCRIPTION = """\
Export a checkpoint of a training with weights in nf4 (as hardware/one_gpu_24_nf4): the dequantised weights
as a model of their own, and the adapters, which belong to it and not to the original model.

example:
  rag-r1 model export-nf4 outputs/run/global_step_100 --base Qwen/Qwen2.5-14B-Instruct --out exported
  vllm serve exported/base --enable-lora --max-lora-rank 32 --lora-modules policy=exported/adapter
"""
#: Keys of config.json in which the trained model and the model that is quantised again must agree.
_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "num_attention_heads")


class ExportArguments(Arguments):
    """Options of `rag-r1 model export-nf4`."""

    checkpoint: CliPositionalArg[Path] = argument("the checkpoint, a folder global_step_N", "CHECKPOINT")
    base: str = argument("the model that was trained, as actor_rollout_ref.model.path names it", "MODEL")
    out: Path = argument("a new folder", "DIR")
    merged: bool = argument(
        "one model, with the adapters in its weights, for `rag-r1 eval` and a vLLM without adapters",
        default=False,
    )
    dtype: Literal["bfloat16", "float32"] | None = argument(
        "dtype of the written weights (default: that of the training; with --merged float32, because "
        "bfloat16 rounds small updates away)",
        default=None,
    )
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = read_arguments(ExportArguments, arguments, prog=PROG, description=_DESCRIPTION, check=_check_start)
    adapters = _check_start(args)
    if args.check_only:
        print(f"all checks passed: the model of {args.checkpoint} would be written into {args.out}")
        return 0
    model = _quantised(args.base, adapters)
    dtype = args.dtype or ("float32" if args.merged else str(model.dtype).removeprefix("torch."))
    args.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(args.out.absolute()) as part:
        part.mkdir()
        if args.merged:
            _write_model(_with_adapters(model, adapters), adapters, part, dtype, merged=True)
        else:
            _write_model(model, adapters, part / "base", dtype, merged=False)
            _write_adapters(adapters, part / "adapter", str(args.out / "base"))
    print(args.out if args.merged else f"{args.out / 'base'} and {args.out / 'adapter'}")
    return 0


def _check_start(args: ExportArguments) -> SavedAdapters:
    """Return the adapters of the checkpoint. Raises StartError with all problems."""
    with StartChecks() as checks:
        checks.run(check_packages, PROG, "bitsandbytes", "peft", "transformers")
        adapters = checks.run(read_adapters, args.checkpoint)
        base = checks.run(_config_of, args.base)
        if adapters and base:
            checks.run(_check_base, args.base, base, adapters)
        checks.run(_check_new, args.out)
        checks.run(check_out, args.out)
    assert adapters is not None  # else StartChecks has raised
    return adapters


def _check_new(out: Path) -> None:
    """Raise RunError if the folder exists."""
    if out.exists():
        raise RunError(f"--out {out} exists already: give another folder")


def _config_of(base: str) -> PretrainedConfig:
    """Return the configuration of a model in a folder or on the Hub. Raises RunError if it cannot be read,
    or if the folder holds no weights, or incomplete ones."""
    import httpx
    from transformers import AutoConfig

    try:
        is_on_hub = is_hub_name(base)
        if not is_on_hub and not Path(base).is_dir():
            raise OSError("there is no such folder")
        is_offline = is_on_hub and not hub_answers()
        config = AutoConfig.from_pretrained(base, trust_remote_code=False, local_files_only=is_offline)
        if Path(base).is_dir():
            if not has_weights(Path(base)):
                raise OSError("the folder holds no weights")
            check_weights(Path(base))
        return config
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:  # as in model_folders/hub.py
        reason = first_line_of(error)
        raise RunError(f"--base {base} cannot be read ({reason}): give the model that was trained") from error


def _trained_config(adapters: SavedAdapters) -> dict[str, Any]:
    """Return the content of the checkpoint's config.json. Raises RunError if it cannot be read."""
    path = adapters.huggingface / "config.json"
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({reason_of(error)}): give another checkpoint") from error


def _check_base(base: str, config: PretrainedConfig, adapters: SavedAdapters) -> None:
    """Raise RunError if the sizes of the base model differ from those of the trained model."""
    trained_config = _trained_config(adapters)
    for key in _SIZES:
        if key in trained_config and getattr(config, key, None) != trained_config[key]:
            raise RunError(f"--base {base} has another {key} than the trained model: give that model")


def _quantised(base: str, adapters: SavedAdapters) -> Module:
    """Return the model in nf4 on the CPU, in the dtype of the training. Raises RunError if the checkpoint's
    config.json cannot be read."""
    import torch
    from transformers import AutoModelForCausalLM

    from rag_r1.inference.nf4.weights import load_nf4

    dtype = torch.float32 if "32" in str(_trained_config(adapters).get("dtype")) else torch.bfloat16
    return load_nf4(AutoModelForCausalLM, base, dtype, "cpu")


def _with_adapters(model: Module, adapters: SavedAdapters) -> Module:
    """Return the model with the adapters in its layers. Raises RunError if the model has no layer for one of
    them."""
    from peft import get_peft_model, set_peft_model_state_dict

    wrapped = get_peft_model(model, adapters.config(""))
    if unexpected := set_peft_model_state_dict(wrapped, adapters.weights).unexpected_keys:
        raise RunError(
            f"the model has no layer for the adapter {unexpected[0]}: give the model that was trained"
        )
    return wrapped.base_model.model


def _write_model(model: Module, adapters: SavedAdapters, out: Path, dtype: str, *, merged: bool) -> None:
    """Write the dequantised weights of a model, and the checkpoint's config and tokenizer. With `merged`,
    the adapters are added to the weights."""
    import torch
    from huggingface_hub import save_torch_state_dict

    from rag_r1.inference.nf4.weights import weight_readers

    readers = weight_readers(model, "cpu", merged=merged, dtype=getattr(torch, dtype))
    shutil.copytree(adapters.huggingface, out, dirs_exist_ok=True)
    save_torch_state_dict({name: reader() for name, reader in readers.items()}, out)
    keys = read_json_file(out / "config.json")
    keys.pop("quantization_config", None)
    write_json(out / "config.json", {**keys, "dtype": dtype})


def _write_adapters(adapters: SavedAdapters, out: Path, base: str) -> None:
    """Write the adapters in PEFT's format, with `base` as the path of their base model."""
    from safetensors.torch import save_file

    out.mkdir()
    adapters.config(base).save_pretrained(out)
    save_file(adapters.weights, out / "adapter_model.safetensors")
