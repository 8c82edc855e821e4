"""`SftRow`: a sample for supervised fine-tuning, stored as parquet and encoded as tokens.

A row is a prompt and the pieces that follow it: turns that a policy generated and observations that the
environment inserted. Every piece says where it comes from, and which pieces are trained follows from that
and never from looking at text: only a generated piece can be trained, so an observation has loss weight 0
whatever is in it.

`SftTokens` makes of a row what a rollout sees, by the means of a rollout (`AgentSetup`): the prompt
through the protocol and the chat template, with the question neutralised, and each piece encoded on its
own, as turns and observations enter the token ledger. Nothing is joined before it is encoded, because
text at a boundary would then give other tokens: Qwen's tokenizer makes one token of `>` and the line
break after it.

A turn ends with its closing tag, and so does what is trained: there is no end-of-sequence token. In a rollout
the generation stops at that tag, after `</search>` the observation follows, and after `</answer>` the episode
is over; a token that no rollout ever contains would be trained here and never seen again.

The columns: `id`, `question`, `protocol` (its name), `kind`, `messages` (chat messages), `pieces` (text,
generated, trained), and as they were counted when the row was made, `context_tokens` (everything before the
last target) and `target_tokens` (all targets).
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

COLUMNS = ("id", "question", "protocol", "kind", "messages", "pieces", "context_tokens", "target_tokens")


@dataclass(frozen=True)
class Piece:
    """Text after the prompt. `generated`: a turn of the policy, not an observation; `trained`: a target."""

    text: str
    generated: bool
    trained: bool = False

    def __post_init__(self) -> None:
        if self.trained and not self.generated:
            raise DataError("an observation is marked as a target: only what a policy generated is trained")


@dataclass(frozen=True)
class SftRow:
    """One sample: a prompt and its pieces, of which at least one is a target. Raises DataError without
    one."""

    id: str
    question: str
    protocol: str
    kind: str
    messages: tuple[dict[str, str], ...]
    pieces: tuple[Piece, ...]
    context_tokens: int = 0
    target_tokens: int = 0

    def __post_init__(self) -> None:
        if not any(piece.trained and piece.text for piece in self.pieces):
            raise DataError(f"the row {self.id!r} has no target")

    @property
    def targets(self) -> list[str]:
        """The texts that are trained."""
        return [piece.text for piece in self.pieces if piece.trained]

    def to_row(self) -> dict[str, Any]:
        """The row under its columns."""
        return {**vars(self), "messages": list(self.messages), "pieces": [asdict(p) for p in self.pieces]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SftRow:
        """Read a row that `to_row` made. Raises DataError for any other."""
        try:
            pieces = tuple(Piece(p["text"], bool(p["generated"]), bool(p["trained"])) for p in row["pieces"])
            messages = tuple({"role": m["role"], "content": m["content"]} for m in row["messages"])
            values = {name: row[name] for name in COLUMNS if name not in ("messages", "pieces")}
            return cls(**values, messages=messages, pieces=pieces)
        except (KeyError, TypeError, AttributeError) as error:
            fault = f"the row {row.get('id')!r} is not an SFT row ({error!r})"
            raise DataError(f"{fault}: make the data again, with `rag-r1 sft-data`") from error


@dataclass(frozen=True)
class RowTokens:
    """The token ids of a row, and for each of them 1 if it is trained, else 0."""

    ids: list[int]
    mask: list[int]

    @property
    def targets(self) -> int:
        """The number of tokens that are trained."""
        return sum(self.mask)


class SftTokens:
    """Encodes rows for one tokenizer and one protocol; `chat` are arguments of the chat template."""

    def __init__(self, tokenizer: Any, protocol: Protocol, chat: Mapping[str, Any] | None = None):
        tokens = control_tokens(tokenizer)
        codec = TokenizerCodec(tokenizer)
        template = ChatTemplate(tokenizer, **(chat or {}))
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
        """The tokens of a row. Raises DataError if a piece contains a token that controls this model:
        it was made for another tokenizer."""
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
        """A token among these ids that controls the model and is not a tag of the protocol, or None."""
        return next((self._control[token] for token in ids if token in self._control), None)

    def encode(self, text: str) -> list[int]:
        """The token ids of a turn or an observation."""
        return self._setup.codec.encode(text)

    def prompt_text(self, row: SftRow) -> str:
        """The text of the prompt, up to where the policy's first turn begins."""
        messages = self.protocol.harmless(row.messages, row.question)
        if self.protocol.prompt_form == "text":
            text = self._begin + "".join(message["content"] for message in messages)
        else:
            text = self._render(messages)
        return text + self.protocol.opening


def protocol_of_rows(rows: Iterable[SftRow], name: str | None) -> Protocol:
    """The protocol of rows: `name` (or a file) or, without it, the one that they name. Raises DataError if
    rows name another one, and for a protocol of chat turns."""
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
    """Write the rows as a parquet file. The same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_file(Path(path)) as part:
        pq.write_table(pa.Table.from_pylist([row.to_row() for row in rows], schema=_schema()), part)


def read_sft_rows(path: str | Path) -> Iterator[SftRow]:
    """The rows of a parquet file. Raises DataError, which names the file, for a file that is missing or has
    other columns, and for a row that is not an SFT row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "make it with `rag-r1 sft-data`"
    try:
        check_parquet(path, COLUMNS)
        with pq.ParquetFile(path) as file:
            if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
                raise DataError(f"{path}: has no column {', '.join(missing)}: {remedy}")
            for batch in file.iter_batches(batch_size=256, columns=list(COLUMNS)):
                yield from map(SftRow.from_row, batch.to_pylist())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path}: there is no such file: {remedy}, or correct the path") from error
    except pa.ArrowException as error:
        raise DataError(f"{path}: is not a parquet file ({error}): {remedy}") from error
    except DataError as error:
        raise error if str(error).startswith(str(path)) else DataError(f"{path}: {error}") from error


def _schema() -> pa.Schema:
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
