"""The provenance of a run: everything that its result depends on, in `provenance.json`.

Two results can be compared only if the corpus, the retriever, the prompt and the budgets behind them are
known: a repaired corpus can change EM by more than the difference between two algorithms (arXiv 2605.27881).
Every run therefore writes its provenance when it starts (`make_provenance`). Reports show it as the run's
"card", and `rag-r1 eval compare` refuses to compare runs whose cards differ, unless the difference is
declared as intended.

The facts come from provenance_facts.py, which asks the retrieval server for its description, hashes files and
looks up package versions. A fact that cannot be found out is null. No secret is stored: credentials and
parameters are removed from addresses, and the values of keys that name a secret are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_r1.agent import FailurePolicy
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.secrets import public_address, without_secrets
from rag_r1.protocols import Protocol
from rag_r1.rewards.normalise import NormaliserName
from rag_r1.rollouts import provenance_facts
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import PROVENANCE, write_provenance
from rag_r1.runs.settings import flatten, json_hash, json_roundtrip
from rag_r1.tools.retrieval.client import RetrieverConfig

#: The name of the file in earlier versions of this project.
_OLD_FILE = "card.json"
#: Keys that differ between any two runs, and are therefore not compared.
_NOT_COMPARED = ("started",)


class _ProvenancePart(BaseModel):
    """Base of the file's sections, which refuse unknown keys and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelPart(_ProvenancePart):
    """The policy."""

    #: The name on the Hub, or the name of the model's folder.
    name: str
    #: A hash over all files of the folder; None for a model on the Hub.
    sha256: str | None = None
    #: The revision on the Hub.
    revision: str | None = None


class EnginePart(_ProvenancePart):
    """The engine that generated the policy's turns."""

    #: `tokens`: token ids are sent and returned; `text`: the endpoint tokenizes.
    mode: Literal["tokens", "text"]
    #: What else is known of the engine, such as its API and version.
    options: dict[str, Any] = Field(default_factory=dict)


class ProtocolPart(_ProvenancePart):
    """The protocol."""

    name: str
    #: A hash of the whole definition, with tags and templates.
    sha256: str
    #: A hash of the system prompt, the user prompt, the opening and the prompt's form.
    prompt_sha256: str


class RetrieverPart(_ProvenancePart):
    """The retrieval server, and how it was queried."""

    url: str
    wire: str
    topk: int
    #: Whether `/health` reported success; None if the server has no such route.
    healthy: bool | None = None
    #: The server's description of itself at `/ready`: back end, passages, corpus, encoder, guarantee.
    ready: dict[str, Any] | None = None


class DataPart(_ProvenancePart):
    """A file of questions."""

    sha256: str
    #: The number of rows; None for a format whose rows are not counted.
    rows: int | None = None


class CommitPart(_ProvenancePart):
    """The commit of this project's code."""

    sha: str
    #: Whether tracked files differ from the commit; None if git does not say.
    changed: bool | None


class Provenance(_ProvenancePart):
    """Everything that the result of a run depends on."""

    format: Literal[1] = 1
    #: When the run was started, in UTC.
    started: str
    #: How the questions were asked (rag_r1/evaluation/baselines.py).
    condition: str = "agent"
    model: ModelPart
    engine: EnginePart
    protocol: ProtocolPart
    budget: dict[str, Any]
    failures: dict[str, Any]
    sampling: dict[str, Any]
    seed: int | None = None
    normaliser: NormaliserName = "squad"
    #: The model that judged the answers; empty without a judge.
    judge: dict[str, Any] = Field(default_factory=dict)
    corpus_sha256: str | None = None
    retriever: RetrieverPart | None = None
    #: The manifest of the index, without its list of files.
    index: dict[str, Any] | None = None
    #: The files of questions by name.
    data: dict[str, DataPart] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    commit: CommitPart | None = None
    machine: dict[str, Any] = Field(default_factory=dict)

    @property
    def mask(self) -> list[str] | None:
        """The kinds of failure that the run masks; None if the card does not say."""
        mask = self.failures.get("mask")
        return list(map(str, mask)) if isinstance(mask, list | tuple) else None

    @property
    def rows(self) -> int | None:
        """The number of questions in all data files; None if there are no files, or if the rows of one were
        not counted."""
        counts = [part.rows for part in self.data.values()]
        return None if not counts or None in counts else sum(count for count in counts if count is not None)

    def flat(self) -> dict[str, Any]:
        """Return all values but empty sections, by their dotted keys, such as `retriever.ready.encoder`."""
        return {key: value for key, value in flatten(self.model_dump(mode="json")).items() if value != {}}

    def write(self, folder: Path) -> Path:
        """Write `provenance.json` into a run's folder atomically, and return its path. Raises RunError if a
        file of that name has other content, and OSError if it cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        return write_provenance(folder, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> Provenance | None:
        """Return the card in a run's folder; None if there is none. Raises RunError for a file that is not
        a card."""
        for path in (folder / PROVENANCE, folder / _OLD_FILE):
            if path.is_file() and (card := cls._read(path)) is not None:
                return card
        return None

    @classmethod
    def _read(cls, path: Path) -> Provenance | None:
        """Return the card in a file; None if the file only has a run's settings (rag_r1/runs/folder.py)."""
        try:
            content = read_json_file(path)
            if isinstance(content, dict) and content.pop("settings", None) is not None and not content:
                return None
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"])) or "the file"
            raise RunError(
                f"{path}: {key}: {first['msg']}; correct it, or make the card again with the run"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path}: cannot be read ({error}); make the card again with the run") from error


def find_differences(cards: Sequence[Provenance]) -> dict[str, list[Any]]:
    """Return the keys in which cards differ, with one value per card. A missing key counts as null."""
    flat_cards = [card.flat() for card in cards]
    keys = sorted(set().union(*flat_cards) - set(_NOT_COMPARED))
    values_by_key = {key: [card.get(key) for card in flat_cards] for key in keys}
    return {
        key: values for key, values in values_by_key.items() if any(value != values[0] for value in values)
    }


def make_provenance(
    *,
    model: str | Path,
    protocol: Protocol,
    budget: Any,
    sampling: Mapping[str, Any],
    engine_mode: Literal["tokens", "text"],
    condition: str = "agent",
    judge: Mapping[str, Any] | None = None,
    failures: FailurePolicy | None = None,
    engine: Mapping[str, Any] | None = None,
    seed: int | None = None,
    retriever: RetrieverConfig | None = None,
    index: Path | None = None,
    data: Sequence[Path] = (),
    started: datetime | None = None,
) -> Provenance:
    """Return the card of a run that starts now (or at `started`).

    `model` is a folder, whose files are hashed, or a name on the Hub; `budget` is a Budget or a mapping;
    `engine` has further facts about the engine. `retriever` is None for a run without a search; otherwise its
    server is asked for `/ready` and `/health`, with the token in RETRIEVAL_TOKEN. `index` is the folder of
    the server's index, if it is on this machine, and `data` are the files of questions.

    Raises RunError if the server, the index or a file of questions cannot be used, or if the index and the
    server have different corpora, and OSError if a file of the model cannot be read.
    """
    server = None if retriever is None else retriever_part(retriever)
    manifest = provenance_facts.manifest_facts(index) if index else None
    return Provenance(
        started=(started or datetime.now(timezone.utc)).astimezone(timezone.utc).isoformat("T", "seconds"),
        condition=condition,
        model=ModelPart(**provenance_facts.model_facts(model)),
        engine=EnginePart(mode=engine_mode, options=without_secrets(engine or {})),
        protocol=protocol_part(protocol),
        budget=_public_values(budget),
        failures=_public_values(failures or FailurePolicy()),
        sampling=_public_values(sampling),
        seed=seed,
        judge=without_secrets(judge or {}),
        corpus_sha256=_corpus_sha256(server, manifest, index),
        retriever=server,
        index=manifest,
        data=provenance_facts.file_facts(data),
        versions=provenance_facts.package_versions(),
        commit=provenance_facts.commit_facts(),
        machine=provenance_facts.machine_facts(),
    )


def retriever_part(retriever: RetrieverConfig) -> RetrieverPart:
    """Return the provenance of a search: its address and request, and its server's description of itself.
    Raises the errors of `describe_server`."""
    url, facts = public_address(retriever.base), provenance_facts.describe_server(retriever.base)
    return RetrieverPart(url=url, wire=retriever.wire, topk=retriever.topk, **facts)


def protocol_part(protocol: Protocol) -> ProtocolPart:
    """Return the name and the hashes of a protocol. The special tokens that it neutralises are left out,
    since they depend on the model."""
    prompt = [protocol.system_prompt, protocol.user_prompt, protocol.opening, protocol.prompt_form]
    definition = {name: value for name, value in asdict(protocol).items() if name != "special_tokens"}
    return ProtocolPart(name=protocol.name, sha256=json_hash(definition), prompt_sha256=json_hash(prompt))


def _corpus_sha256(
    server: RetrieverPart | None, manifest: Mapping[str, Any] | None, index: Path | None
) -> str | None:
    """Return the hash of the corpus that the server or the index names; None if neither names one. Raises
    RunError if they name different corpora."""
    hashes = [(server.ready or {}).get("corpus_sha256") if server else None]
    hashes.append((manifest or {}).get("corpus", {}).get("sha256"))
    # A foreign server or manifest may have another value than a text there.
    served, indexed = (value if isinstance(value, str) else None for value in hashes)
    if served and indexed and served != indexed:
        raise RunError(
            f"{server.url if server else ''} serves the corpus {served}, but the index {index} is of "
            f"{indexed}: give the folder of the index that is served, or leave --index out"
        )
    return served or indexed


def _public_values(settings: Any) -> dict[str, Any]:
    """Return a dataclass or mapping of settings as JSON values without secrets."""
    values = vars(settings) if is_dataclass(settings) else dict(settings)
    return without_secrets(json_roundtrip(values))
