"""Resolves the settings of an encoder: pooling, prefixes, normalisation, separator and length.

The pooling is never guessed, because a model does not work with a wrong one. It comes from the folder's
sentence-transformers configuration, from a known family (`FAMILIES`), or from a flag. Contradictory poolings
are refused, since the mistake would go unnoticed: BGE with mean pooling still returns results, only bad ones.

Prefixes come from flags, from the prompts in the folder or, if it has none, from the family. A retriever that
`rag-r1 retriever train` has made gets none from a family: without prompts it was trained without prefixes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_server.encode.model_folder import TRAINED, FolderSettings
from retrieval_server.encode.options import POOLINGS, EncoderOptions
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import EncoderSection

#: The largest number of tokens, unless --max-length or a model's folder sets another limit.
MAX_LENGTH = 512


@dataclass(frozen=True)
class EncoderFamily:
    """How a published family of encoders is meant to be used."""

    name: str
    #: Found in the names of the family's models.
    pattern: re.Pattern[str]
    pooling: str
    query_prefix: str
    passage_prefix: str


#: The settings in the model cards. Other models of these families (bge-m3, *-instruct, e5-mistral) have
#: different settings, which must come from their folders or from flags.
FAMILIES = (
    EncoderFamily(
        "BGE (English)",
        re.compile(r"bge-(small|base|large)-en\b"),
        "cls",
        "Represent this sentence for searching relevant passages: ",
        "",
    ),
    EncoderFamily("E5", re.compile(r"\be5-(small|base|large)(?!.*instruct)"), "mean", "query: ", "passage: "),
)


def find_family(name: str) -> EncoderFamily | None:
    """Return the family that matches the last part of a name, such as `BAAI/bge-large-en-v1.5`, or None."""
    folder_name = Path(name).name.lower().replace("_", "-")
    return next((family for family in FAMILIES if family.pattern.search(folder_name)), None)


def choose_pooling(
    name: str, options: EncoderOptions, config: FolderSettings, family: EncoderFamily | None
) -> str:
    """Return the pooling on which flag, folder and family agree.

    Raises UserError if two of them differ, or none of them says.
    """
    sources = {"--pooling": options.pooling, "its sentence-transformers configuration": config.pooling}
    if family is not None:
        sources[f"the {family.name} family"] = family.pooling
    poolings = {source: pooling for source, pooling in sources.items() if pooling is not None}
    if not poolings:
        raise UserError(f"{name}: its pooling is unknown. Give --pooling {'|'.join(POOLINGS)}.")
    if len(set(poolings.values())) > 1:
        conflict = ", ".join(f"{source} says {pooling!r}" for source, pooling in poolings.items())
        raise UserError(
            f"{name}: pooling is contradictory: {conflict}. Correct 1_Pooling/config.json in the folder, "
            "rename the folder, or drop the flag."
        )
    return next(iter(poolings.values()))


def check_length(
    folder: Path, config: FolderSettings, flag: int | None, *, special: int, max_tokens: int | None
) -> None:
    """Raise UserError if the length limit leaves no token for prefix and text, or exceeds the model's.

    The limit is that of --max-length (`flag`) or, without it, that of the folder, if it has one. `special` is
    the number of tokens that the tokenizer adds to every text. `max_tokens` is the largest number that the
    model can read (None: no limit).
    """
    max_length = flag or config.max_length
    if max_length is None:
        return
    label = f"--max-length: {flag}" if flag else f"{folder / TRAINED}: max_length: {max_length}"
    if max_length <= special:
        raise UserError(f"{label} tokens leave none beside the {special} special ones. Set --max-length.")
    if max_tokens is not None and max_length > max_tokens:
        raise UserError(
            f"{label} tokens are more than the {max_tokens} that the model can read. Set --max-length."
        )


def resolve_settings(
    name: str,
    sha256: str,
    config: FolderSettings,
    options: EncoderOptions,
    *,
    family: EncoderFamily | None,
    pooling: str,
    model_max_length: int | None,
    separator_token: str | None,
) -> EncoderSection:
    """Return the settings of a new index, from flags, folder and family in this order of precedence.

    There is one exception: vectors of a family are normalised even if the folder does not say so.
    `model_max_length` (in tokens) and `separator_token` belong to the loaded model. The dimension is still 0.
    Raises UserError if --no-normalize contradicts the folder.
    """
    if options.normalize is False and config.normalize:
        raise UserError(f"{name}: its own configuration normalises its vectors; drop --no-normalize.")
    # A folder that has a prompt, or the mode of a trained retriever, names all its prefixes itself.
    own = (config.query_prefix, config.passage_prefix, config.query_mode)
    has_own = own != (None, None, None)
    prefixes: EncoderFamily | FolderSettings = config if has_own or family is None else family
    return EncoderSection(
        name=name,
        sha256=sha256,
        pooling=pooling,
        query_prefix=_first_set(options.query_prefix, prefixes.query_prefix, ""),
        passage_prefix=_first_set(options.passage_prefix, prefixes.passage_prefix, ""),
        # By default vectors are normalised, so that the inner product is the cosine.
        normalize=_first_set(options.normalize, True if family else None, config.normalize, True),
        separator=_first_set(
            options.separator, config.separator, f" {separator_token} " if separator_token else " "
        ),
        max_length=options.max_length or config.max_length or min(model_max_length or MAX_LENGTH, MAX_LENGTH),
        dimension=0,
        query_mode=config.query_mode,
    )


def _first_set(*values: Any) -> Any:
    """Return the first of the values that is not None."""
    return next(value for value in values if value is not None)
