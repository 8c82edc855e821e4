"""Adds the rows of probes to a validation: a copy of each question, with the probe's name in a column.

veRL reports a validation by data source, and passes all columns of a row to the agent loop. So the data set
(dataset.py) appends a copy of its rows for each probe of `rag_r1.probes`, with changed columns:

    rag_r1_probe    the probe under which the agent loop plays the row; empty for the real run
    data_source     `<source>/probe_<name>`, so that veRL logs `val-aux/<source>/probe_<name>/em/mean@1`

The probes `gold` and `withheld` need rows that name their gold passages. Of these, `gold` takes only the rows
whose gold passages are all in the file `rag_r1.probe_passages`. The numbers of both are printed.

The records of a probe are written to a separate folder, `trajectories/<split>_<probe>`, under the original
name of the source (reward_manager.py). So each probe can be reported alone, or compared with the real run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from rag_r1.data.rows import cell_text
from rag_r1.probes.passages import Passages
from rag_r1.probes.probes import NEED_GOLD, applies

#: The column with the name of a row's probe.
COLUMN = "rag_r1_probe"


def add_probe_rows(rows: datasets.Dataset, probes: Sequence[str], passages: Passages) -> datasets.Dataset:
    """Return the rows followed by, for each probe, a copy of the validation rows that the probe can be
    played with. `passages` are those that the probe `gold` can show."""
    infos = [info if isinstance(info, Mapping) else {} for info in rows["extra_info"]]
    validation_rows = [i for i, info in enumerate(infos) if split_of(info) != "train"]
    parts = [rows.add_column(COLUMN, [""] * len(rows))]
    for probe in probes:
        row_numbers = validation_rows
        if probe in NEED_GOLD:
            # `golds` and `topk` only choose among the gold passages, which does not matter here.
            gold_passages = {i: passages.evidence(infos[i], golds=(), topk=1) for i in validation_rows}
            with_gold = [i for i in validation_rows if gold_passages[i]]
            row_numbers = [i for i in with_gold if applies(probe, gold_passages[i])]
            print(f"probe {probe}: {len(with_gold)} of {len(validation_rows)} rows name their gold passages")
            if len(row_numbers) < len(with_gold):
                print(f"probe {probe}: {len(row_numbers)} of these are in the file rag_r1.probe_passages")
        probe_rows = rows.select(row_numbers)
        sources = [f"{source}{suffix_of(probe)}" for source in probe_rows["data_source"]]
        probe_rows = probe_rows.remove_columns("data_source").add_column("data_source", sources)
        probe_rows = probe_rows.add_column(COLUMN, [probe] * len(probe_rows))
        parts.append(probe_rows.cast(parts[0].features))  # the same types, in the same order
    return datasets.concatenate_datasets(parts)


def split_of(info: Mapping[str, Any]) -> str:
    """Return the split in a row's `extra_info`; "train" if it has none, or null as in a column of parquet."""
    return cell_text(info.get("split")) or "train"


def suffix_of(probe: str) -> str:
    """Return the suffix of a data source's name under a probe."""
    return f"/probe_{probe}"


def probe_of(row: Mapping[str, Any]) -> str:
    """Return the probe of a row, from the columns that veRL passes on; empty for the real run."""
    return str(row.get(COLUMN) or "")
