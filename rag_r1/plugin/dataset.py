"""veRL's data set of parquet rows, without rows that lack a prompt.

veRL's own data set ends a run in the middle of an epoch at a row whose `prompt` is null (rl_dataset.py,
`__getitem__`); one such row among ninety thousand should not cost a whole run. `data.custom_cls` is veRL's
own way to name another data set. Rows with a prompt but without a question or a gold answer stay: the agent
loop ends their trajectories at once, with a status of their own.

To a validation's rows it adds those of the probes (probe_rows.py). veRL does not say which of its two data
sets it makes: that of the validation has the files `data.val_files`, and of their rows those count whose
split is not `train`, as for the agent loop, which gives them the limits of validation. It passes the block
`data` and no other, so the recipes repeat there the keys `probes` and `probe_passages` of `rag_r1`.
"""

from __future__ import annotations

import datasets
from verl.utils.dataset.rl_dataset import RLHFDataset

from rag_r1.data.rows import usable_prompt
from rag_r1.plugin.probe_rows import add_probe_rows
from rag_r1.probes.passages import Passages, read_passages


class SearchDataset(RLHFDataset):
    """RLHFDataset that leaves out rows without a usable prompt and prints how many."""

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset = None) -> datasets.Dataset:
        """Returns the rows with a usable prompt, without long ones if `data.filter_overlong_prompts` says so,
        and those of the probes. veRL calls it with all rows."""
        key, rows = self.prompt_key, len(dataframe)
        dataframe = dataframe.filter(usable_prompt, input_columns=[key], desc=f"Rows with a usable {key}")
        if len(dataframe) < rows:
            print(f"left out {rows - len(dataframe)} of {rows} rows: no usable {key}")
        dataframe = super().maybe_filter_out_long_prompts(dataframe)
        probes = list(self.config.get("probes") or ())
        if not probes or not self._is_validation():
            return dataframe
        path = self.config.get("probe_passages") if "gold" in probes else None
        return add_probe_rows(dataframe, probes, read_passages(path) if path else Passages())

    def _is_validation(self) -> bool:
        """Whether the files of this data set are those of the validation."""
        files = self.config.get("val_files") or ()
        return list(self.original_data_files) == ([files] if isinstance(files, str) else list(files))
