"""An engine for veRL that trains LoRA adapters over weights in nf4, a format of 4 bits.

- `engine`    the engine: veRL's FSDP engine for language models, over weights in nf4
- `register`  registers the engine; `actor_rollout_ref.model.external_lib` names this module
"""
