"""Adds to a trajectory record what explains it later: the prompt and, on request, the tokens.

The prompt of a record is a hash. Its text, in which `{question}` stands for the question, is written to
`<rag_r1.trajectory_dir>/prompts/<process>.ndjson` when the process sees it for the first time, so a run with
one prompt has one text for each process and not one for each trajectory. A process writes at most a thousand.
With `rag_r1.trajectory_tokens` a record also holds its training rows, as veRL trains on them: ids, mask and
log-probs, about 12 bytes a token.
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

#: Texts that a process writes: with examples drawn for each question, every prompt is another one.
_MAX_PROMPTS = 1000


class RecordDetails:
    """Adds details to the records of a process. `folder`: where the records are written, None if they are
    not; `tokens`: whether to add the training rows."""

    def __init__(self, folder: str | None, *, tokens: bool = False):
        self.path = Path(folder) / "prompts" / f"{os.getpid()}.ndjson" if folder else None
        self.tokens = tokens
        self._hashes: set[str] = set()

    def add(self, record: Trajectory, ledger: Ledger, protocol: Protocol, codec: Codec) -> None:
        """Sets `prompt_sha256` and `rows` of a record whose tokens are in `ledger`, and writes the prompt's
        text if it is new. Does nothing if no records are written; a full disk loses the text, not the
        record."""
        if self.path is None or not ledger.first_prompt:
            return
        text = codec.decode(ledger.first_prompt)
        # The prompt shows the question neutralised, behind the instructions, which may hold the same words.
        prefix, question, suffix = text.rpartition(protocol.neutralise(record.question))
        text = f"{prefix}{{question}}{suffix}" if question else text
        record.prompt_sha256 = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        if self.tokens:
            record.rows = [vars(row) for row in ledger.rows()]
        if record.prompt_sha256 not in self._hashes and len(self._hashes) < _MAX_PROMPTS:
            self._hashes.add(record.prompt_sha256)
            try:
                append_records(self.path, {"prompt_sha256": record.prompt_sha256, "text": text})
            except OSError as error:
                logger.error(
                    "cannot write the prompt of trajectory %s to %s: %s", record.id, self.path, error
                )
