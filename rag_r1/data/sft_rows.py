"""Defines `SftRow`, a sample for supervised fine-tuning, which is stored as parquet and encoded as tokens.

A row consists of a prompt and the pieces that follow it: turns that a policy generated, and observations that
the environment inserted. Each piece records its origin, and only a generated piece can be a training target.
So an observation always has loss weight 0, whatever its text is.

`SftTokens` encodes a row with the same code as a rollout (`AgentSetup`), so both give the same tokens. The
prompt goes through the protocol and the chat template, with control tokens in the question neutralised, and
each piece is encoded separately, just as turns and observations enter the token ledger. The pieces are not
joined before they are encoded, because that would change the tokens at the boundaries: Qwen's tokenizer, for
example, encodes `>` and a following line break as one token.

The target of a turn ends with the turn's closing tag, without an end-of-sequence token. In a rollout the
generation stops at that tag: after `</search>` the observation follows, and after `</answer>` the episode
ends. Training an end-of-sequence token would teach the model a token that no rollout contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.agent import Budget, TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.errors import DataError
from rag_r1.protocols import Protocol, control_tokens, load_protocol
from rag_r1.sandbox.chat_template import ChatTemplate
from rag_r1.sandbox.parquet import check_parquet

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of the parquet file, which are the fields of `SftRow`.
COLUMNS = ("id", "question", "protocol", "kind", "messages", "pieces", "context_tokens", "target_tokens")


@dataclass(frozen=True)
class Piece:
    """A text after the prompt: a turn of the policy or an observation. Raises DataError for an observation
    that is a target."""

    text: str
    #: Whether the policy generated the text; False for an observation.
    generated: bool
    #: Whether the text is a training target.
    trained: bool = False

    def __post_init__(self) -> None:
        if self.trained and not self.generated:
            raise DataError("an observation is marked as a target: only what a policy generated is trained")


@dataclass(frozen=True)
class SftRow:
    """A sample, which is a prompt and its pieces. Raises DataError if none of the pieces is a target."""

    id: str
    question: str
    #: Name of the protocol.
    protocol: str
    #: The kind of sample, "whole trace" or "CONTEXT -> ACTION" (rag_r1/sft/segment.py).
    kind: str
    #: The prompt as chat messages.
    messages: tuple[dict[str, str], ...]
    pieces: tuple[Piece, ...]
    #: Number of tokens before the last target, counted when the row was made.
    context_tokens: int = 0
    #: Number of tokens of all targets, counted when the row was made.
    target_tokens: int = 0

    def __post_init__(self) -> None:
        if not any(piece.trained and piece.text for piece in self.pieces):
            raise DataError(f"the row {self.id!r} has no target")

    @property
    def targets(self) -> list[str]:
        """The texts of the targets."""
        return [piece.text for piece in self.pieces if piece.trained]

    def to_row(self) -> dict[str, Any]:
        """Return the row as a mapping from column to value."""
        return {**vars(self), "messages": list(self.messages), "pieces": [asdict(p) for p in self.pieces]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SftRow:
        """Read a row that `to_row` returned. Raises DataError for any other row."""
        try:
            pieces = tuple(Piece(p["text"], bool(p["generated"]), bool(p["trained"])) for p in row["pieces"])
            messages = tuple({"role": m["role"], "content": m["content"]} for m in row["messages"])
            values = {name: row[name] for name in COLUMNS if name not in ("messages", "pieces")}
            texts = [piece.text for piece in pieces] + [text for m in messages for text in m.values()]
            # The first four columns are texts, too.
            if not all(isinstance(text, str) for text in (*texts, *map(values.get, COLUMNS[:4]))):
                raise TypeError("a text is missing")
            return cls(**values, messages=messages, pieces=pieces)
        except (KeyError, TypeError, AttributeError) as error:
            fault = f"the row {row.get('id')!r} is not an SFT row ({error!r})"
            raise DataError(f"{fault}: make the data again, with `rag-r1 sft-data`") from error


@dataclass(frozen=True)
class RowTokens:
    """The tokens of a row."""

    #: The token ids.
    ids: list[int]
    #: 1 for each token of a target, and 0 for every other one.
    mask: list[int]

    @property
    def targets(self) -> int:
        """The number of tokens of targets."""
        return sum(self.mask)


class SftTokens:
    """Encodes rows for one tokenizer and one protocol."""

    def __init__(self, tokenizer: Any, protocol: Protocol, chat: Mapping[str, Any] | None = None):
        """`chat` has further arguments of the chat template."""
        tokens = control_tokens(tokenizer)
        codec = TokenizerCodec(tokenizer)
        template = ChatTemplate(tokenizer, **(chat or {}))
        #: The protocol, as it is used with this tokenizer.
        self.protocol = protocol.with_special_tokens(tokens)
        self._setup = AgentSetup(
            protocol=self.protocol,
            codec=codec,
            budget=Budget(),
            tools=dict,
            chat=template.ids,
            start=tuple(codec.start),
        )
        self._begin = tokenizer.decode(codec.start) if codec.start else ""
        tags = {tag for block in protocol.blocks for tag in (block.open, block.close)}
        self._control = {tokenizer.convert_tokens_to_ids(token): token for token in tokens - tags}
        self._render = template.text

    def __call__(self, row: SftRow) -> RowTokens:
        """Return the tokens of a row. Raises DataError if a piece contains a control token of this tokenizer,
        which means that the row was made for another one."""
        ids = self._setup.prompt_ids(row.question, row.messages)
        mask = [0] * len(ids)
        for piece in row.pieces:
            encoded = self._setup.codec.encode(piece.text)
            if control := self.control_token(encoded):
                raise DataError(
                    f"the row {row.id!r} contains the control token {control!r} of this model's tokenizer: "
                    "make the data again, with `rag-r1 sft-data --model` and this model"
                )
            ids += encoded
            mask += [int(piece.trained)] * len(encoded)
        return RowTokens(ids, mask)

    def control_token(self, ids: Sequence[int]) -> str | None:
        """Return the first control token among these ids that is not a tag of the protocol; None without
        one."""
        return next((self._control[token] for token in ids if token in self._control), None)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a turn or an observation."""
        return self._setup.codec.encode(text)

    def prompt_text(self, row: SftRow) -> str:
        """Return the text of the prompt, up to the beginning of the policy's first turn."""
        messages = self.protocol.harmless(row.messages, row.question)
        if self.protocol.prompt_form == "text":
            text = self._begin + "".join(message["content"] for message in messages)
        else:
            text = self._render(messages)
        return text + self.protocol.opening


def protocol_of_rows(rows: Iterable[SftRow], name: str | None) -> Protocol:
    """Return the protocol of rows: the one with this name (or in this file), or, if `name` is None, the one
    that the rows name; there must be a row then. Raises DataError if rows name another protocol, if it cannot
    be loaded, and for a protocol with chat turns."""
    names = sorted({row.protocol for row in rows})
    if name is None and len(names) != 1:
        raise DataError(f"the rows are of several protocols ({', '.join(names)}): train them separately")
    try:
        protocol = load_protocol(name or names[0])
    except ValueError as error:
        raise DataError(f"data.protocol: {error}") from error
    if other_names := [name for name in names if name != protocol.name]:
        raise DataError(f"data.protocol is {protocol.name!r}, but there are rows of {', '.join(other_names)}")
    if protocol.turns == "chat":
        raise DataError(
            f"the protocol {protocol.name} has turns of a chat template, for which there is no supervised "
            "fine-tuning: use one without `turns: chat`, such as agentic_rag_en"
        )
    return protocol


def write_sft_rows(path: str | Path, rows: Iterable[SftRow]) -> None:
    """Write the rows as a parquet file, whose bytes depend only on the rows. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_file(Path(path)) as part:
        pq.write_table(pa.Table.from_pylist([row.to_row() for row in rows], schema=_schema()), part)


def read_sft_rows(path: str | Path) -> Iterator[SftRow]:
    """Yield the rows of a parquet file. Raises DataError, which names the file, if the file is missing or
    broken, if it lacks a column, or if a row is not an SFT row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "make it with `rag-r1 sft-data`"
    try:
        check_parquet(path, COLUMNS)
        with pq.ParquetFile(path) as file:
            if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
                raise DataError(f"{path}: has no column {', '.join(missing)}: {remedy}")
            # Fewer at a time than BATCH_ROWS, since a row is a whole episode.
            for batch in file.iter_batches(batch_size=256, columns=list(COLUMNS)):
                yield from (_row_of(path, row) for row in batch.to_pylist())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path}: there is no such file: {remedy}, or correct the path") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a parquet file that can be read ({error}): {remedy}") from error


def _row_of(path: str | Path, row: Mapping[str, Any]) -> SftRow:
    """Read a row of a file. Raises DataError, which names the file, if it is not an SFT row."""
    try:
        return SftRow.from_row(row)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _schema() -> pa.Schema:
    """Return the schema of the parquet file."""
    import pyarrow as pa

    text, flag = pa.string(), pa.bool_()
    return pa.schema(
        [
            ("id", text),
            ("question", text),
            ("protocol", text),
            ("kind", text),
            ("messages", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("pieces", pa.list_(pa.struct([("text", text), ("generated", flag), ("trained", flag)]))),
            ("context_tokens", pa.int64()),
            ("target_tokens", pa.int64()),
        ]
    )
