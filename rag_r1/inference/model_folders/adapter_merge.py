"""Merges LoRA adapters into their model: `python -m rag_r1.inference.model_folders.adapter_merge FOLDER`.

From a checkpoint with adapters, veRL's merger writes the original model, and the adapters into the folder
`lora_adapter` beside its weights. The merged weights are written in float32, since bfloat16 rounds small
updates away. shard_merge.py runs this module as a separate process, whose memory is freed when it ends.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rag_r1.io.bounded_json import read_json_object

#: The folder in which veRL's merger writes the adapters, in PEFT's format.
ADAPTERS = "lora_adapter"


def main(folder: Path) -> None:
    """Replace the model and the adapters in `folder` by the merged model. Ends the process with a message if
    the adapters do not fit the layers of the model."""
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    saved = read_json_object(folder / ADAPTERS / "adapter_config.json")
    config = LoraConfig(**{key: saved[key] for key in ("r", "lora_alpha", "target_modules")})
    model = get_peft_model(base, config)
    loaded = set_peft_model_state_dict(model, load_file(folder / ADAPTERS / "adapter_model.safetensors"))
    missing = [name for name in loaded.missing_keys if ".lora_" in name]
    if unmatched := [*loaded.unexpected_keys, *missing]:
        sys.exit(f"the adapters do not fit the model: {unmatched[0]}")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    model.merge_and_unload().save_pretrained(folder)
    shutil.rmtree(folder / ADAPTERS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
