"""Adds the prompt and, on request, the tokens to a trajectory record, so that it can be explained later.

A record holds only a hash of its prompt. The text of the prompt, with `{question}` in place of the question,
is written to `<rag_r1.trajectory_dir>/prompts/<process>.ndjson` when the process sees it for the first time.
A run with one prompt thus writes one text for each process, and not one for each trajectory. With
`rag_r1.trajectory_tokens` a record also contains its training rows, with the token ids, the mask and the
log-probs on which veRL trains: about 12 bytes per token.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from rag_r1.agent import Codec, Ledger, Trajectory
from rag_r1.agent.records import append_records
from rag_r1.protocols import Protocol

logger = logging.getLogger(__name__)

#: The largest number of texts that a process writes. If examples are drawn for each question, all prompts
#: differ.
_MAX_PROMPTS = 1000


class RecordDetails:
    """Adds details to the records of a process. `folder` is the folder of the records, or None if none are
    written; `tokens` says whether to add the training rows."""

    def __init__(self, folder: str | None, *, tokens: bool = False):
        self.path = Path(folder) / "prompts" / f"{os.getpid()}.ndjson" if folder else None
        self.tokens = tokens
        self._hashes: set[str] = set()

    def add(self, record: Trajectory, ledger: Ledger, protocol: Protocol, codec: Codec) -> None:
        """Set `prompt_sha256` and `rows` of a record whose tokens are in `ledger`, and write the prompt's
        text if it is new.

        Does nothing if no records are written, or if the episode failed before it had a prompt. An error in
        writing the text is logged and not raised.
        """
        if self.path is None or not ledger.first_prompt:
            return
        text = codec.decode(ledger.first_prompt)
        # The prompt contains the neutralised question. It is searched for from the end, because the
        # instructions before it may contain the same words.
        prefix, question, suffix = text.rpartition(protocol.neutralise(record.question))
        text = f"{prefix}{{question}}{suffix}" if question else text
        record.prompt_sha256 = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        if self.tokens:
            record.rows = [vars(row) for row in ledger.rows()]
        if record.prompt_sha256 not in self._hashes and len(self._hashes) < _MAX_PROMPTS:
            try:
                append_records(self.path, {"prompt_sha256": record.prompt_sha256, "text": text})
                self._hashes.add(record.prompt_sha256)
            except OSError as error:
                logger.error(
                    "cannot write the prompt of trajectory %s to %s: %s", record.id, self.path, error
                )
