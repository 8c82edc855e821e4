"""Encodes rows for supervised fine-tuning (sft_rows.py) as tokens, with the mask of their targets.

`SftTokens` encodes a row with the same code as a rollout (`AgentSetup`), so both give the same tokens. The
prompt goes through the protocol and the chat template, with control tokens in the question neutralised, and
each piece is encoded separately, just as turns and observations enter the token ledger. The pieces are not
joined before they are encoded, because that would change the tokens at the boundaries: Qwen's tokenizer, for
example, encodes `>` and a following line break as one token.

The target of a turn ends with the turn's closing tag, without an end-of-sequence token. In a rollout the
generation stops at that tag: after `</search>` the observation follows, and after `</answer>` the episode
ends. Training an end-of-sequence token would teach the model a token that no rollout contains.

All rows of a run have one protocol, with which they are encoded (`protocol_of_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.agent import Budget, TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.sft_rows import SftRow
from rag_r1.io.errors import DataError
from rag_r1.protocols import Protocol, control_tokens, load_protocol
from rag_r1.sandbox.chat_template import ChatTemplate


@dataclass(frozen=True)
class RowTokens:
    """The tokens of a row."""

    #: The token ids.
    ids: list[int]
    #: 1 for each token of a target, and 0 for every other one.
    mask: list[int]

    @property
    def target_tokens(self) -> int:
        """The number of tokens of targets."""
        return sum(self.mask)


class SftTokens:
    """Encodes rows for one tokenizer and one protocol."""

    def __init__(self, tokenizer: Any, protocol: Protocol, template: Mapping[str, Any] | None = None):
        """`template` has further arguments of the tokenizer's chat template."""
        tokens = control_tokens(tokenizer)
        codec = TokenizerCodec(tokenizer)
        chat_template = ChatTemplate(tokenizer, **(template or {}))
        #: The protocol, as it is used with this tokenizer.
        self.protocol = protocol.with_special_tokens(tokens)
        self._setup = AgentSetup(
            protocol=self.protocol,
            codec=codec,
            budget=Budget(),
            tools=dict,
            chat=chat_template.ids,
            start=tuple(codec.start),
        )
        self._begin = tokenizer.decode(codec.start) if codec.start else ""
        tags = {tag for block in protocol.blocks for tag in (block.open, block.close)}
        self._control = {tokenizer.convert_tokens_to_ids(token): token for token in tokens - tags}
        self._render = chat_template.text

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
        """Return the first control token among these ids that is not a tag of the protocol; None if there is
        none."""
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
    if others := [other for other in names if other != protocol.name]:
        raise DataError(f"data.protocol is {protocol.name!r}, but there are rows of {', '.join(others)}")
    if protocol.turns == "chat":
        raise DataError(
            f"the protocol {protocol.name} has turns of a chat template, for which there is no supervised "
            "fine-tuning: use one without `turns: chat`, such as agentic_rag_en"
        )
    return protocol
