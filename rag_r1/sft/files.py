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

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rag_r1.data.sft_rows import SftRow, SftTokens, write_sft_rows
from rag_r1.io.atomic_files import atomic_file

Format = Literal["verl", "llama_factory", "both"]
#: Name of the data set in LLaMA-Factory; its validation set has `_validation` after it.
NAME = "rag_r1_sft"
SPLITS = ("train", "validation")


def write_samples(
    folder: Path, splits: Sequence[Sequence[SftRow]], tokens: SftTokens, format: Format
) -> list[Path]:
    """Write training and validation rows; returns the files. Files of an earlier run that would not be
    written again are removed."""
    written, described = [], {}
    for split, rows in zip(SPLITS, splits, strict=True):
        name = NAME if split == "train" else f"{NAME}_{split}"
        verl, llama = folder / f"{split}.parquet", folder / "llama_factory" / f"{name}.json"
        if rows and format in ("verl", "both"):
            written.append(_whole(verl, lambda part, rows=rows: write_sft_rows(part, rows)))
        else:
            verl.unlink(missing_ok=True)
        if rows and format in ("llama_factory", "both"):
            conversations = [conversation(row, tokens) for row in rows]
            written.append(write_json(llama, conversations))
            described[name] = {
                "file_name": llama.name,
                "formatting": "sharegpt",
                "columns": {"messages": "conversations"},
            }
        else:
            llama.unlink(missing_ok=True)
    info = folder / "llama_factory" / "dataset_info.json"
    if described:
        written.append(write_json(info, described))
    else:
        info.unlink(missing_ok=True)
    return written


def conversation(row: SftRow, tokens: SftTokens) -> dict[str, Any]:
    """A row as LLaMA-Factory's conversation, in which people and observations alternate with the model."""
    turns = [{"from": "human", "value": tokens.prompt_text(row)}]
    turns += [
        {"from": "gpt" if piece.generated else "observation", "value": piece.text} for piece in row.pieces
    ]
    return {"id": row.id, "kind": row.kind, "conversations": turns}


def write_json(path: Path, value: Any) -> Path:
    """Write a JSON file, indented; returns its path."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return _whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """Write JSON lines; returns the path."""
    # Ids and details may have half characters, which UTF-8 cannot hold.
    lines = "".join(json.dumps(value) + "\n" for value in values)
    return _whole(path, lambda part: part.write_text(lines, encoding="utf-8"))


def _whole(path: Path, write: Callable[[Path], Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        write(part)
    return path
