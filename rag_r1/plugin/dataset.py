"""veRL's data set of parquet rows, without rows that lack a prompt, and with the rows of probes.

veRL's own data set ends a run in the middle of an epoch at a row whose `prompt` is null (rl_dataset.py,
`__getitem__`). One such row among ninety thousand should not cost a whole run, so the recipes name this data
set in `data.custom_cls`. Rows with a prompt but without a question or a gold answer stay in: the agent loop
ends their trajectories at once, with a status that says so.

In a validation, the data set adds the rows of the probes (probe_rows.py). veRL does not say whether it is
making the data set of training or of validation, so the latter is recognised by its files, `data.val_files`.
veRL passes the block `data` only; therefore the recipes repeat the keys `probes` and `probe_passages` of
`rag_r1` there.
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
        """Return the rows with a usable prompt and, in a validation, the rows of the probes. Overlong
        prompts are left out if `data.filter_overlong_prompts` is set. veRL calls this with all rows."""
        key, n_rows = self.prompt_key, len(dataframe)
        dataframe = dataframe.filter(usable_prompt, input_columns=[key], desc=f"Rows with a usable {key}")
        if len(dataframe) < n_rows:
            print(f"left out {n_rows - len(dataframe)} of {n_rows} rows: no usable {key}")
        dataframe = super().maybe_filter_out_long_prompts(dataframe)
        probes = list(self.config.get("probes") or ())
        if not probes or not self._is_validation():
            return dataframe
        # Of the probes' rows, only those of `gold` depend on the passages (probe_rows.py).
        path = self.config.get("probe_passages") if "gold" in probes else None
        return add_probe_rows(dataframe, probes, read_passages(path) if path else Passages())

    def _is_validation(self) -> bool:
        """Return whether the files of this data set are those of the validation. A run that trains on these
        files gets probes in its training as well, but only of rows whose split is not `train`."""
        files = self.config.get("val_files") or ()
        return list(self.original_data_files) == ([files] if isinstance(files, str) else list(files))
