"""Writes SFT samples for veRL's SFT trainer and for LLaMA-Factory.

    train.parquet, validation.parquet      for veRL, read by `rag_r1.plugin.sft_dataset` (data/sft_rows.py)
    llama_factory/                         one JSON file a split, and dataset_info.json
    sft_summary.json, dropped.jsonl        counts, and every trace and sample that was left out

LLaMA-Factory gets conversations (its format `sharegpt`): the prompt with the chat template already
applied, then turns and observations as messages of their own. With `template: empty` it adds nothing and
encodes each message on its own, so its tokens are those of a rollout, and no end-of-sequence token is
trained. In the layout `cut` only the last message is to be trained: that is `mask_history: true`. In the
layout `whole` all turns are: `mask_history: false`. Observations are never trained.

Each file is written under another name first and then renamed, so a reader never finds half of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rag_r1.data.sft_rows import SftRow, SftTokens, write_sft_rows
from rag_r1.io.atomic_files import write_json

Format = Literal["verl", "llama_factory", "both"]
#: Name of the data set in LLaMA-Factory; its validation set has `_validation` after it.
NAME = "rag_r1_sft"
SPLITS = ("train", "validation")


def write_samples(
    folder: Path, splits: Sequence[Sequence[SftRow]], tokens: SftTokens, file_format: Format
) -> list[Path]:
    """Write training and validation rows; returns the files. Files of an earlier run that are not written
    again are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    entries = {}
    for split, rows in zip(SPLITS, splits, strict=True):
        name = NAME if split == "train" else f"{NAME}_{split}"
        verl = folder / f"{split}.parquet"
        llama = folder / "llama_factory" / f"{name}.json"
        paths += [verl, llama]
        if rows and file_format in ("verl", "both"):
            write_sft_rows(verl, rows)
        else:
            verl.unlink(missing_ok=True)
        if rows and file_format in ("llama_factory", "both"):
            llama.parent.mkdir(exist_ok=True)
            write_json(llama, [conversation(row, tokens) for row in rows], ensure_ascii=False)
            entries[name] = {
                "file_name": llama.name,
                "formatting": "sharegpt",
                "columns": {"messages": "conversations"},
            }
        else:
            llama.unlink(missing_ok=True)
    info = folder / "llama_factory" / "dataset_info.json"
    if entries:
        write_json(info, entries, ensure_ascii=False)
    else:
        info.unlink(missing_ok=True)
    return [path for path in (*paths, info) if path.exists()]


def conversation(row: SftRow, tokens: SftTokens) -> dict[str, Any]:
    """The row as LLaMA-Factory's conversation, in which people and observations alternate with the model."""
    turns = [{"from": "human", "value": tokens.prompt_text(row)}]
    turns += [
        {"from": "gpt" if piece.generated else "observation", "value": piece.text} for piece in row.pieces
    ]
    return {"id": row.id, "kind": row.kind, "conversations": turns}
