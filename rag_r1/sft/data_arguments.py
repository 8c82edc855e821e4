"""The arguments of `rag-r1 sft-data`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from rag_r1.data.files.bad_rows import HELP
from rag_r1.options.command_line import Arguments, Below1, Positive, Share, argument
from rag_r1.options.out_folder import refuse_replaced
from rag_r1.protocols import protocol_names
from rag_r1.runs.start_checks import CHECK_ONLY
from rag_r1.sft.files import FILES, Format

#: The files in --out.
WRITTEN = (*FILES, "dropped.jsonl", "sft_summary.json")


class SftDataArguments(Arguments):
    """The arguments of `rag-r1 sft-data`."""

    traces: list[Path] = argument("trajectory records: a file or folder; may be repeated", "DIR", default=[])
    published: list[Path] = argument(
        "samples in LLaMA-Factory's alpaca or sharegpt JSON, such as RAG-R1's; may be repeated",
        "FILE",
        default=[],
    )
    model: str = argument("model that will be trained (folder or name on the Hub); its tokenizer is read")
    out: Path = argument("folder to write", "DIR")
    protocol: str = argument(
        f"shipped protocol ({', '.join(protocol_names())}) or a .yaml of yours", "NAME", default="rag_r1_mq"
    )
    prompt: str | None = argument(
        "text file with a prompt of yours, which has {question} in it", "FILE", default=None
    )
    format: Format = argument("formats of the files", default="both")
    layout: Literal["cut", "whole"] = argument(
        "one sample for each turn, as published, or one for each trace, with all its turns as targets",
        default="cut",
    )
    metric: Literal["em", "cover_em", "any"] = argument(
        "metric by which an answer is right; any: keep wrong ones too, to teach the format only", default="em"
    )
    thought_only: Share = argument(
        "largest share of the traces that may answer without a search", "SHARE", default=0.5
    )
    validation: Below1 = argument("share of the questions for the validation set", "SHARE", default=0.05)
    max_context: Positive = argument("most tokens before a target", "TOKENS", default=8192)
    max_target: Positive = argument("most tokens of a target", "TOKENS", default=2048)
    seed: int = argument("seed of the draws", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _something_to_read(self) -> SftDataArguments:
        if not self.traces and not self.published:
            raise ValueError("nothing to read: give --traces DIR or --published FILE")
        if self.published and self.layout == "whole":
            raise ValueError("--layout whole needs --traces: published samples are cut already")
        return self

    @model_validator(mode="after")
    def _inputs_stay(self) -> SftDataArguments:
        refuse_replaced([*self.traces, *self.published], self.out, WRITTEN)
        return self
