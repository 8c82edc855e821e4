"""Writes SFT samples for veRL's SFT trainer and for LLaMA-Factory.

    train.parquet, validation.parquet      for veRL, read by `rag_r1.plugin.sft_dataset` (data/sft_rows.py)
    llama_factory/                         a JSON file for each split, and dataset_info.json

LLaMA-Factory gets conversations in its format `sharegpt`. The first message is the prompt, to which the chat
template has already been applied; each turn and each observation is a further message. With `template: empty`
LLaMA-Factory adds nothing, and encodes each message separately. The tokens are therefore those of a rollout,
and no end-of-sequence token is trained. For the layout `cut`, LLaMA-Factory needs `mask_history: true`, so
that only the last message is trained; for the layout `whole` it needs `mask_history: false`, which trains all
turns. Observations are never trained.

Files are written under a temporary name. When all are written, those that an earlier run has left and this
one does not write are removed, and the new ones are renamed one right after the other. So a reader never sees
an incomplete file, and an error or a kill before that leaves all those of the earlier run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from rag_r1.data.sft_rows import SftRow, write_sft_rows
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.io.atomic_files import atomic_file, write_json

Format = Literal["verl", "llama_factory", "both"]
#: Name of the training set in LLaMA-Factory. That of the validation set has `_validation` after it.
NAME = "rag_r1_sft"
#: The splits of the samples, in the order in which they are passed.
SPLITS = ("train", "validation")
#: The files of the samples, in the folder.
FILES = (
    *(f"{split}.parquet" for split in SPLITS),
    *(f"llama_factory/{name}.json" for name in (NAME, f"{NAME}_validation", "dataset_info")),
)


def write_samples(
    folder: Path, splits: Sequence[Sequence[SftRow]], tokens: SftTokens, file_format: Format
) -> list[Path]:
    """Write the training and the validation rows into `folder`; returns the files, none for empty splits.

    Files that an earlier run has left are removed if they are not written again. Raises OSError if a file
    cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = folder / "llama_factory" / "dataset_info.json"
    written: list[Path] = []
    paths: list[Path] = []
    entries = {}
    with ExitStack() as files:

        def start_file(path: Path) -> Path:
            """Return the temporary name under which a file is written, and note the file."""
            written.append(path)
            return files.enter_context(atomic_file(path))

        for split, rows in zip(SPLITS, splits, strict=True):
            name = NAME if split == "train" else f"{NAME}_{split}"
            verl, llama = folder / f"{split}.parquet", info.parent / f"{name}.json"
            paths += [verl, llama]
            if rows and file_format in ("verl", "both"):
                write_sft_rows(start_file(verl), rows)
            if rows and file_format in ("llama_factory", "both"):
                info.parent.mkdir(exist_ok=True)
                write_json(start_file(llama), [conversation(row, tokens) for row in rows], ensure_ascii=False)
                entries[name] = {
                    "file_name": llama.name,
                    "formatting": "sharegpt",
                    "columns": {"messages": "conversations"},
                }
        if entries:
            write_json(start_file(info), entries, ensure_ascii=False)
        for path in {*paths, info} - {*written}:  # may be left from an earlier run
            path.unlink(missing_ok=True)
    return written


def conversation(row: SftRow, tokens: SftTokens) -> dict[str, Any]:
    """Return a row as a conversation of LLaMA-Factory, in which the prompt and the observations alternate
    with the turns of the model."""
    turns = [{"from": "human", "value": tokens.prompt_text(row)}]
    turns += [
        {"from": "gpt" if piece.generated else "observation", "value": piece.text} for piece in row.pieces
    ]
    return {"id": row.id, "kind": row.kind, "conversations": turns}
