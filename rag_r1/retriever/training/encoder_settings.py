"""The settings of an encoder, in one file for training and service: pooling, prefixes, separator, length.

The file `retriever.json` lies in the folder of a trained model. The retrieval server's build reads it
(retrieval_server/encode/model_folder.py), so that an index gets the settings of the training without flags,
and a further training starts with them. What sentence-transformers has a place for (pooling, normalisation,
prefixes as prompts, length) is saved there as well, for other programs.

Where no option is given, a setting comes from the first of these that has it: the options of the command, the
manifest of the index that the agent was served with (`--index`), `retriever.json` in the folder of the model,
its sentence-transformers configuration. The first two must not contradict each other, nor the second and
third unless an option decides, nor the pooling the model itself: a model answers badly under another pooling
or other prefixes than it was trained with, and silently. (The mode is the exception: an option may give
another one than the index has, for a retriever that is to read something else.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_r1.io.atomic_files import reason_of, write_json
from rag_r1.io.bounded_json import json_file_bytes, read_json_file
from rag_r1.protocols.retriever_query import MODES, Mode, QueryFormat
from rag_r1.retriever.records import first_problem
from rag_r1.runs.errors import RunError

FILE = "retriever.json"
#: Tokens, unless set otherwise (the same cap as that of an index's build).
MAX_LENGTH = 512
#: Settings that an index's manifest has under the same names.
SHARED = ("pooling", "normalize", "query_prefix", "passage_prefix", "separator", "max_length")


class EncoderSettings(BaseModel):
    """What an encoder must be used with. `max_length`: most tokens of a query and of a passage; `mode`: what
    stands in a query (rag_r1/protocols/retriever_query.py); `trained`: how the model came about, for
    people."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    pooling: Annotated[str, Field(min_length=1)]
    normalize: bool
    query_prefix: str
    passage_prefix: str
    separator: Annotated[str, Field(min_length=1)]
    max_length: Annotated[int, Field(ge=8)]
    mode: Mode
    trained: dict[str, Any] = {}

    @property
    def format(self) -> QueryFormat:
        """The format of the encoder's queries."""
        return QueryFormat(self.separator, self.max_length, self.query_prefix)

    def write(self, folder: Path) -> None:
        """Write the settings into the folder of the model, as `retriever.json`."""
        write_json(folder / FILE, {"format": 1, **self.model_dump()}, ensure_ascii=False)


def read_settings(folder: Path) -> EncoderSettings | None:
    """The settings that were saved with a model; None if there are none. Raises RunError for a file that
    cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return EncoderSettings.model_validate_json(json_file_bytes(path))
    except (OSError, ValueError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else error
        raise RunError(f"{path} cannot be read ({problem}): copy the model again") from error


def settings_of_index(index: Path) -> dict[str, Any]:
    """The encoder's settings in the manifest of an index, and the mode if the manifest has one. Raises
    RunError if it cannot be read or has no encoder."""
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
    """The settings from options, index, `retriever.json` and the model itself, in this order; None is
    unset. Raises RunError, with all contradictions at once."""
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
    settings: dict[str, Any] = {}
    for name in (*SHARED, "mode"):
        values = (source.get(name) for source in (options, index, saved, model))
        settings[name] = next((value for value in values if value is not None), None)
    if settings["normalize"] is False:
        wrong.append("the vectors of the index are not normalised, but a retriever is trained on cosines")
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
