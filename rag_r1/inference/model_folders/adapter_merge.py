"""Adds adapters to the model beside them: `python -m rag_r1.inference.model_folders.adapter_merge FOLDER`.

Of a checkpoint with adapters veRL's merger makes the original model, with a folder `lora_adapter` beside its
weights. Their sum is written in float32, since bfloat16 rounds small updates away. shard_merge.py starts this
as a process of its own, whose memory is free again when it ends.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rag_r1.io.bounded_json import read_json_object

#: The folder in which veRL's merger writes the adapters, in PEFT's format.
ADAPTERS = "lora_adapter"


def main(folder: Path) -> None:
    """Replace the model and the adapters in `folder` by the sum of both. Ends with a message if the model has
    other layers than the adapters."""
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    saved = read_json_object(folder / ADAPTERS / "adapter_config.json")
    config = LoraConfig(**{key: saved[key] for key in ("r", "lora_alpha", "target_modules")})
    model = get_peft_model(base, config)
    keys = set_peft_model_state_dict(model, load_file(folder / ADAPTERS / "adapter_model.safetensors"))
    if other := [*keys.unexpected_keys, *(name for name in keys.missing_keys if ".lora_" in name)]:
        sys.exit(f"the adapters do not fit the model: {other[0]}")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    model.merge_and_unload().save_pretrained(folder)
    shutil.rmtree(folder / ADAPTERS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
