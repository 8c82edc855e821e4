"""Loads a tokenizer from a folder or from the Hugging Face Hub, without running code that comes with it.

`load_tokenizer` first tries the files of a folder out in the sandbox (rag_r1/sandbox/chat_template.py), since
a hostile tokenizer can take unlimited time and memory. Files from the Hub are not tried out.
`check_vocabulary` and `check_tokenizer` find a tokenizer that does not fit its model before a run starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.inference.model_folders import is_hub_name
from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.errors import reason_of
from rag_r1.io.hub import hub_answers
from rag_r1.runs.errors import RunError
from rag_r1.sandbox.chat_template import refuse_empty_tokenizer, refuse_endless_files, refuse_endless_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder, or the one that a Hub name (owner/name) stands for.

    Raises FileNotFoundError if `name` is neither; ValueError if the files in a folder or the chat template
    exceed limits of time or memory, if there are no tokens, or if the tokenizer requires code of its own,
    since that code is not run and the tokens could differ without it; OSError or RuntimeError if no worker of
    the sandbox can be started; and whatever transformers raises.
    """
    is_on_hub = is_hub_name(name)
    if not is_on_hub and not Path(name).exists():
        raise FileNotFoundError(f"{name}: there is no such folder")
    refuse_endless_files(name)
    from transformers import AutoTokenizer

    # Without an explicit trust_remote_code, transformers would ask on the terminal.
    tokenizer = AutoTokenizer.from_pretrained(
        name, trust_remote_code=False, local_files_only=is_on_hub and not hub_answers()
    )
    if "AutoTokenizer" in (getattr(tokenizer, "init_kwargs", {}).get("auto_map") or {}):
        raise ValueError(
            "it needs code of its own (auto_map in tokenizer_config.json), which is not run: give a folder "
            "whose tokenizer transformers has itself"
        )
    refuse_empty_tokenizer(tokenizer)
    refuse_endless_template(tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Raise RunError if the model in a folder has no embedding for an id that a text or the end of a turn
    can contain.

    Only ordinary tokens are compared with the model. Other special tokens may lie beyond its embeddings: the
    text-only Gemma models, for example, keep the token for an image.
    """
    size = model_config(folder).get("vocab_size")
    ordinary_ids = (key for key, token in tokenizer.added_tokens_decoder.items() if not token.special)
    last_id = max(tokenizer.vocab_size - 1, tokenizer.eos_token_id or 0, *ordinary_ids)
    if isinstance(size, int) and last_id >= size:
        raise RunError(
            f"{folder} has a vocab_size of {size} in its config.json, but its tokenizer has ids to {last_id}"
            ": give the tokenizer of this model, or resize_token_embeddings of the model and save it"
        )


def check_tokenizer(folder: Path, remedy: str, key: str | None = None) -> None:
    """Raise RunError unless the tokenizer in a model's folder can be loaded and passes `check_vocabulary`.
    The message begins with `key`, the option that names the folder, unless that is None, and ends with
    `remedy`."""
    try:
        tokenizer = load_tokenizer(str(folder))
    except Exception as error:  # transformers and a tokenizer's files may raise anything
        why = why_not_loaded(str(folder), error)
        fault = f"the tokenizer of {folder} cannot be loaded: {why}: {remedy}"
        raise RunError(fault if key is None else f"{key}: {fault}") from error
    check_vocabulary(tokenizer, folder)


def _malformed_file(folder: Path) -> str:
    """Return the name and the fault of the first tokenizer file that is not a JSON object, in parentheses
    for a message; "" if all are JSON objects."""
    for file in [*folder.glob("config.json"), *sorted(folder.glob("*token*.json"))]:
        try:
            read_json_object(file)
        except (OSError, ValueError, RecursionError) as error:
            return f" ({file.name}: {reason_of(error)})"
    return ""


def why_not_loaded(name: str, error: Exception) -> str:
    """Return the reason why `load_tokenizer` failed with `error`, for a message that ends with the
    remedy."""
    line = next(iter(str(error).splitlines()), "")
    if Path(name).is_dir() and not any(Path(name).glob("*[tv]o[kc]*")):  # tokenizer.json, vocab.json, ...
        return "the folder holds no tokenizer"
    if Path(name).exists():
        return f"{type(error).__name__}: {line}{_malformed_file(Path(name))}"
    if not is_hub_name(name):
        return "there is no such folder"
    return (
        f"it is not a folder here, and the Hub does not give it ({line}): check the name and the network, or "
        f"download it where there is one (`hf download {name} --local-dir DIR`)"
    )
