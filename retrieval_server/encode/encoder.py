"""Converts texts to vectors with a sentence-transformers model and the settings of the manifest.

Queries are padded in buckets by their own length, so that the vector of a query does not depend on the other
queries of its batch, as far as the CPU's matrix products allow (batch_probe.py). Passages are encoded in
batches that are padded to the longest text, which is faster for long texts of similar length.

torch is imported only when a model is loaded, so that a BM25 server never needs it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval_server.determinism import ProbeResult
from retrieval_server.encode.batch_probe import probe_model
from retrieval_server.encode.encoder_settings import (
    check_length,
    choose_pooling,
    find_family,
    resolve_settings,
)
from retrieval_server.encode.model_folder import check_model, hash_model, read_folder_settings, resolve_model
from retrieval_server.encode.model_import import model_load_lock, pause_collector
from retrieval_server.encode.options import DType, EncoderOptions, OpenVinoOptions
from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.manifest import EncoderSection, require_equal

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

    from retrieval_server.encode.openvino_model import OpenVinoTransformer

log = logging.getLogger(__name__)
#: Queries are padded to a multiple of this many tokens.
BUCKET = 8
#: The number of queries of one bucket that are encoded at once.
_QUERY_BATCH = 64


class Encoder:
    """A loaded model and its settings. Vectors are float32, (texts, dimension).

    `converted` is the transformer in `model` if OpenVINO computes it, and None if torch does.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        section: EncoderSection,
        converted: OpenVinoTransformer | None = None,
    ):
        self._model = model
        self.section = section
        self._converted = converted

    @classmethod
    def create(
        cls,
        name: str,
        options: EncoderOptions,
        device: str | None = None,
        dtype: DType = "float32",
        openvino: OpenVinoOptions | None = None,
    ) -> Encoder:
        """Load a model for a new index and determine all of its settings.

        `device` is torch's name of one; None for a GPU, if any. `dtype` is the number format in which the
        model computes: float32, bfloat16, float16, or int8, which needs `openvino`. Vectors are always
        float32. Raises UserError if the model does not load, or its settings are unknown or contradictory.
        """
        recorded_name, folder = resolve_model(name)
        config = read_folder_settings(folder)
        family = find_family(recorded_name)
        pooling = choose_pooling(name, options, config, family)
        device, torch_dtype = ("cpu", "float32") if openvino else (device, dtype)
        model = _load(folder, pooling, bare=config.pooling is None, device=device, dtype=torch_dtype)
        special = getattr(model.tokenizer, "num_special_tokens_to_add", lambda: 0)()
        check_length(folder, config, options.max_length, special=special, max_tokens=_max_tokens(model))
        sha256 = hash_model(folder)
        section = resolve_settings(
            recorded_name,
            sha256,
            config,
            options,
            family=family,
            pooling=pooling,
            model_max_length=model.max_seq_length,
            separator_token=getattr(model.tokenizer, "sep_token", None),
        )
        model.max_seq_length = section.max_length
        converted = _convert(model, sha256, dtype, openvino) if openvino else None
        dimension = cls(model, section).encode_passages(["probe"]).shape[1]
        measured = {"dimension": dimension, "passage_dtype": "int8" if dtype == "int8" else None}
        return cls(model, section.model_copy(update=measured), converted)

    @classmethod
    def open(
        cls,
        section: EncoderSection,
        override: str | None = None,
        device: str | None = None,
        dtype: DType = "float32",
        openvino: OpenVinoOptions | None = None,
    ) -> Encoder:
        """Load the model of an existing index. `override` is another folder with the same files.

        `device`, `dtype` and `openvino` mean the same as in `create`, and may differ from those of the
        passages. Raises UserError if the model is missing, or is not the one with which the index was built.
        """
        folder = check_model(section, override)
        log.info("loading the encoder %s from %s", section.name, folder)
        bare = read_folder_settings(folder).pooling is None
        device, torch_dtype = ("cpu", "float32") if openvino else (device, dtype)
        model = _load(folder, section.pooling, bare=bare, device=device, dtype=torch_dtype)
        model.max_seq_length = section.max_length
        converted = _convert(model, section.sha256, dtype, openvino) if openvino else None
        encoder = cls(model, section, converted)
        dimension = encoder.encode_queries(["probe"]).shape[1]
        require_equal(f"{folder}: encoder dimension", section.dimension, dimension, REBUILD)
        return encoder

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, (queries, dimension); `probed` says whether batches affect them."""
        texts = [self.section.query_prefix + query for query in queries]
        if self._fits_buckets:
            return self._encode_in_buckets(texts)
        return self.encode_batch(texts)

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Return the vectors of passages, (passages, dimension)."""
        return self.encode_batch([self.section.passage_prefix + text for text in passages], batch_size)

    @cached_property
    def probed(self) -> ProbeResult:
        """What `encode_queries` guarantees in this process; measured on first use."""
        result = self._converted.probe() if self._converted else probe_model(self._model)
        if self._fits_buckets:
            return result
        # Texts are padded to the longest of the batch, so the last digits depend on the lengths of the
        # others.
        return result.without_bits()

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on a device other than the CPU."""
        return self._model.device.type != "cpu"

    @property
    def _fits_buckets(self) -> bool:
        """Whether queries can be padded in buckets: the model has a transformers tokenizer, which can pad,
        and returns whole vectors."""
        return callable(getattr(self._model.tokenizer, "pad", None)) and self._model.truncate_dim is None

    def _encode_in_buckets(self, texts: list[str]) -> np.ndarray:
        """Encode each text with its tokens padded to the next multiple of BUCKET.

        With the usual padding to the longest text of the batch, the last digits of a vector depend on the
        other texts, and a long query slows down short ones. In buckets a text has the same shape in every
        batch, except for the batch size (batch_probe.py).
        """
        if not texts:
            return np.empty((0, self.section.dimension), dtype=np.float32)
        tokenizer = self._model.tokenizer
        max_length = self.section.max_length
        encoded = tokenizer(texts, truncation=True, max_length=max_length)
        buckets: dict[int, list[int]] = {}
        for position, ids in enumerate(encoded["input_ids"]):
            length = min(math.ceil(len(ids) / BUCKET) * BUCKET, max_length)
            buckets.setdefault(length, []).append(position)
        vectors: np.ndarray | None = None
        for length, members in buckets.items():
            for start in range(0, len(members), _QUERY_BATCH):
                chunk = members[start : start + _QUERY_BATCH]
                features = tokenizer.pad(
                    {key: [rows[i] for i in chunk] for key, rows in encoded.items()},
                    padding="max_length",
                    max_length=length,
                    return_tensors="pt",
                )
                embeddings = self._embed(features)
                if vectors is None:
                    vectors = np.empty((len(texts), embeddings.shape[1]), dtype=np.float32)
                vectors[chunk] = embeddings
        return vectors

    def _embed(self, features: Mapping[str, torch.Tensor]) -> np.ndarray:
        """Return the vectors of one batch of tokens, padded by the tokenizer."""
        import torch

        with torch.inference_mode():
            features = {key: value.to(self._model.device) for key, value in features.items()}
            vectors = self._model(features)["sentence_embedding"].float()
            if self.section.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.cpu().numpy()

    def encode_batch(self, texts: list[str], batch_size: int = 64) -> np.ndarray:
        """Return the vectors of texts that already have their prefix, (texts, dimension).

        They are encoded in batches of `batch_size`, which are padded to the longest text.
        """
        import torch

        vectors = self._model.encode(
            texts,
            prompt="",  # the texts have their prefix, so the model must not add its default prompt
            batch_size=batch_size,
            show_progress_bar=False,
            convert_to_tensor=True,
        ).float()
        if self.section.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return np.ascontiguousarray(vectors.cpu().numpy())


def _max_tokens(model: SentenceTransformer) -> int | None:
    """Return the largest number of tokens that a model can read; None if it has no limit or none is known."""
    config = getattr(model[0], "config", None)
    max_tokens = getattr(config, "max_position_embeddings", None)
    if not isinstance(max_tokens, int) or max_tokens < 1:
        return None
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        max_tokens -= (config.pad_token_id or 0) + 1  # their positions start after that of the padding token
    return max_tokens


def _convert(
    model: SentenceTransformer, sha256: str, dtype: DType, settings: OpenVinoOptions
) -> OpenVinoTransformer:
    """Let OpenVINO compute the transformer of `model`, and return the converted transformer."""
    from retrieval_server.encode.openvino_model import use_openvino  # imports torch

    return use_openvino(model, sha256, dtype, settings)


def _load(folder: Path, pooling: str, *, bare: bool, device: str | None, dtype: str) -> SentenceTransformer:
    """Load a model from its folder, without running code of the folder and without using the network.

    A `bare` folder contains only a transformers model, to which the `pooling` is added. Raises UserError if
    the model does not load.
    """
    with pause_collector("sentence_transformers"):
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # Without trust_remote_code=False, the library would ask on the terminal about a folder with code.
    only_data = {"local_files_only": True, "trust_remote_code": False}
    try:
        with model_load_lock:
            if not bare:
                model = SentenceTransformer(str(folder), device=device, **only_data)
                return model.to(getattr(torch, dtype))
            transformer = Transformer(
                str(folder),
                model_kwargs=dict(only_data),
                processor_kwargs=dict(only_data),
                config_kwargs=dict(only_data),
            )
            pooler = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
            model = SentenceTransformer(modules=[transformer, pooler], device=device, trust_remote_code=False)
            model.encode("Who?", show_progress_bar=False)  # finds a missing tokenizer, without which it loads
            return model.to(getattr(torch, dtype))
    except Exception as error:  # three libraries raise any error for a damaged or hostile folder
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400].removesuffix('.')}"
        remedy = f"another --encoder, or another --device than {device}" if device else "another --encoder"
        raise UserError(
            f"{folder}: the model does not load ({reason}). Fetch it again, or give {remedy}."
        ) from error
