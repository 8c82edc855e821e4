"""Trains adapters over weights in nf4: an engine for veRL.

- `engine`    veRL's FSDP engine for language models, over weights in nf4
- `register`  registers it, where `actor_rollout_ref.model.external_lib` names that module
"""
