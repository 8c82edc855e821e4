"""Chooses and stores the settings of an encoder: pooling, prefixes, separator, length and mode.

The file `retriever.json` in the folder of a trained model has the settings for both training and service. The
index build of the retrieval server reads it (retrieval_server/encode/model_folder.py), so an index gets the
settings of the training without flags, and so does a further training. The settings that
sentence-transformers knows (pooling, normalisation, prefixes as prompts, length) are saved in its files as
well, for other programs.

Each setting comes from the first source that has it:

1. the options of the command,
2. the manifest of the index with which the agent was served (`--index`),
3. `retriever.json` in the model's folder,
4. the model's sentence-transformers configuration.

Contradictions are errors, because a model silently performs badly with another pooling or other prefixes than
it was trained with: 1 and 2 must agree, 2 and 3 must agree unless an option decides, and the pooling must be
that of the model. The mode is an exception: an option may differ from the index, to train a retriever that
reads other parts of the query's context.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_r1.io.atomic_files import write_json
from rag_r1.io.bounded_json import json_file_bytes, read_json_file
from rag_r1.io.errors import reason_of
from rag_r1.protocols.retriever_query import MODES, Mode, QueryFormat
from rag_r1.retriever.records import first_problem
from rag_r1.runs.errors import RunError

FILE = "retriever.json"
#: Default limit on the tokens of a text, the same as in an index build.
MAX_LENGTH = 512
#: Settings that an index's manifest has under the same names.
SHARED = ("pooling", "normalize", "query_prefix", "passage_prefix", "separator", "max_length")


class EncoderSettings(BaseModel):
    """The settings with which an encoder must be used."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    pooling: Annotated[str, Field(min_length=1)]
    #: Whether vectors are scaled to length 1.
    normalize: bool
    #: Text before each query.
    query_prefix: str
    #: Text before each passage.
    passage_prefix: str
    #: Text between the parts of a query.
    separator: Annotated[str, Field(min_length=1)]
    #: Most tokens of a query and of a passage.
    max_length: Annotated[int, Field(ge=8)]
    #: The parts of a query's context that are sent with it (rag_r1/protocols/retriever_query.py).
    mode: Mode
    #: The base model, the data and the options of the training, for people who read the file.
    trained: dict[str, Any] = {}

    @property
    def format(self) -> QueryFormat:
        """The format of the encoder's queries."""
        return QueryFormat(self.separator, self.max_length, self.query_prefix)

    def write(self, folder: Path) -> None:
        """Write the settings as `retriever.json` into the folder of the model."""
        write_json(folder / FILE, {"format": 1, **self.model_dump()}, ensure_ascii=False)


def read_settings(folder: Path) -> EncoderSettings | None:
    """Return the settings that were saved with a model, or None if there are none. Raises RunError if the
    file cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return EncoderSettings.model_validate_json(json_file_bytes(path))
    except (OSError, ValueError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else error
        raise RunError(f"{path} cannot be read ({problem}): copy the model again") from error


def settings_of_index(index: Path) -> dict[str, Any]:
    """Return the encoder's settings in the manifest of an index, with the mode if the manifest has one that
    is known. Raises RunError if the manifest cannot be read or has no encoder."""
    path = index / "manifest.json"
    try:
        manifest = read_json_file(path)
        section = manifest["dense"]["encoder"]
        settings = {name: section[name] for name in SHARED}
        mode = section.get("query_mode")
        return settings | {"mode": mode} if mode in MODES else settings
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path} cannot be read ({reason_of(error)})"
        raise RunError(f"{message}: give the folder of a finished index") from error
    except (KeyError, TypeError):
        message = f"{index} is not an index with an encoder"
        raise RunError(f"{message}: give a dense index, or leave --index out") from None


def choose_settings(
    options: Mapping[str, Any], index: Mapping[str, Any], saved: Mapping[str, Any], model: Mapping[str, Any]
) -> EncoderSettings:
    """Choose each setting from the first of `options`, `index`, `saved` (`retriever.json`) and `model` in
    which it is not None. Raises RunError, with all contradictions at once, if the pooling is in none of them,
    and for a value that a setting cannot have."""
    wrong = [
        f"{name} is {options[name]!r} in the options and {index[name]!r} in the manifest of the index"
        for name in SHARED
        if options.get(name) is not None and index.get(name) not in (None, options[name])
    ]
    wrong += [
        f"{name} is {saved[name]!r} in {FILE} of the model and {index[name]!r} in the index's manifest"
        for name in (*SHARED, "mode")
        if options.get(name) is None and None not in (saved.get(name), index.get(name))
        if saved[name] != index[name]
    ]
    settings: dict[str, Any] = dict.fromkeys((*SHARED, "mode"))
    for source in (model, saved, index, options):
        settings |= {name: source[name] for name in settings if source.get(name) is not None}
    if settings["normalize"] is False:
        origin = "the index" if index.get("normalize") is False else FILE
        wrong.append(f"the vectors of {origin} are not normalised, but a retriever is trained on cosines")
    if model.get("pooling") not in (None, settings["pooling"]):
        wrong.append(f"pooling is to be {settings['pooling']!r}, but the model has {model['pooling']!r}")
    if wrong:
        message = f"contradictory settings of the encoder: {'; '.join(wrong)}"
        raise RunError(f"{message}. Correct one of them, give the option, or leave --index out")
    if settings["pooling"] is None:
        raise RunError("the model's folder does not name its pooling: give --pooling (see the model card)")
    try:
        return EncoderSettings(**settings)
    except ValidationError as error:
        raise RunError(f"settings of the encoder: {first_problem(error)}") from error
