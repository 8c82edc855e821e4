"""Finds the Hugging Face folder of a model, given as a folder, a checkpoint of veRL or a name on the Hub.

`local_model` (hub.py) turns a name into a folder. `model_folder` (model_folder.py) turns a folder into that
of a Hugging Face model. If necessary it merges the shards of a checkpoint (shard_merge.py), and it checks
that the weight files are complete (weights.py).
"""

from rag_r1.inference.model_folders.hub import is_hub_name, local_model
from rag_r1.inference.model_folders.model_folder import (
    ADAPTER_META,
    TRACKER,
    checkpoint_name,
    model_folder,
    newest_checkpoint,
)
from rag_r1.inference.model_folders.shard_merge import has_weights
from rag_r1.inference.model_folders.weights import check_weights, tensors_of

__all__ = [
    "ADAPTER_META",
    "TRACKER",
    "check_weights",
    "checkpoint_name",
    "has_weights",
    "is_hub_name",
    "local_model",
    "model_folder",
    "newest_checkpoint",
    "tensors_of",
]
