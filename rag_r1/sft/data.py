"""`rag-r1 sft-data`: makes SFT samples from traces or from RAG-R1's published data.

Which samples there are is decided in samples.py, how a trace is cut in segment.py, and what the files
look like in files.py. This module reads the arguments, writes the summary and prints the counts.
Nothing is written before everything has been read, and each file is complete or absent; after an
interruption run the same command again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from tqdm import tqdm

from rag_r1.agent.records import RecordError, read_records
from rag_r1.data.files.bad_rows import HELP
from rag_r1.data.sft_rows import SftRow, SftTokens
from rag_r1.inference.tokenizer import load_tokenizer
from rag_r1.io.atomic_files import write_json, write_json_lines
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.declare import Constraint
from rag_r1.options.settings_file import recorded_settings
from rag_r1.protocols import Protocol, ProtocolError, load_protocol, protocol_names
from rag_r1.sft.copy_check import RUN, SHORTEST
from rag_r1.sft.files import Format, write_samples
from rag_r1.sft.llama_factory import PublishedDataError, read_samples
from rag_r1.sft.samples import SampleRules, SampleSelection, split_rows
from rag_r1.sft.segment import REASONS, WHOLE, kinds_of

Share = Annotated[float, Field(ge=0, le=1), Constraint("a number from 0 to 1")]

_DESCRIPTION = """\
Make data for supervised fine-tuning from traces with right answers, for `rag-r1 sft` (veRL's SFT trainer)
and for LLaMA-Factory. Each trace is cut at its searches and its answer into samples of four kinds; a
target is a turn that the policy generated and never text of a document.

example:
  rag-r1 sft-data --traces traces --model Qwen/Qwen2.5-7B-Instruct --protocol rag_r1_mq --out data/sft
  rag-r1 sft-data --published SFT_train_data_mq.json --model Qwen/Qwen2.5-7B-Instruct --protocol rag_r1_mq \\
      --out data/sft
"""


class SftDataArguments(Arguments):
    """What is read, what is kept, and what is written."""

    traces: list[Path] = argument("trajectory records: a file or folder; may be repeated", "DIR", default=[])
    published: list[Path] = argument(
        "samples in LLaMA-Factory's alpaca or sharegpt JSON, such as RAG-R1's; may be repeated",
        "FILE",
        default=[],
    )
    model: str = argument("the model that will be trained (folder or name on the Hub), for its tokenizer")
    out: Path = argument("folder to write", "DIR")
    protocol: str = argument(
        f"shipped protocol ({', '.join(protocol_names())}) or your own .yaml", "NAME", default="rag_r1_mq"
    )
    prompt: str | None = argument("your own prompt: a text file with {question} in it", "FILE", default=None)
    format: Format = argument("the formats to write", default="both")
    layout: Literal["cut", "whole"] = argument(
        "one sample for each turn, as published, or one for each trace, with all its turns as targets",
        default="cut",
    )
    metric: Literal["em", "cover_em", "any"] = argument(
        "what makes an answer right; any: keep wrong ones too, to teach the format only", default="em"
    )
    thought_only: Share = argument(
        "largest share of the traces that may answer without a search", "SHARE", default=0.5
    )
    validation: Share = argument("share of the questions for the validation set", "SHARE", default=0.05)
    max_context: Positive = argument("most tokens before a target", "TOKENS", default=8192)
    max_target: Positive = argument("most tokens of a target", "TOKENS", default=2048)
    seed: int = argument("of the draws", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)

    @model_validator(mode="after")
    def _something_to_read(self) -> SftDataArguments:
        if not self.traces and not self.published:
            raise ValueError("nothing to read: give --traces DIR or --published FILE")
        if self.published and self.layout == "whole":
            raise ValueError("--layout whole needs --traces: published samples are cut already")
        return self


class SftDataError(ValueError):
    """The data cannot be made; the message says why."""


@command_main(SftDataError, PublishedDataError, RecordError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1, with nothing written, if the data cannot be made."""
    args = read_arguments(SftDataArguments, arguments, prog="rag-r1 sft-data", description=_DESCRIPTION)
    with recorded_settings("rag-r1 sft-data", args):
        make(args)
    return 0


def make(args: SftDataArguments) -> dict[str, Any]:
    """Read, select and write; returns the summary. Raises SftDataError, PublishedDataError or RecordError."""
    tokens = SftTokens(_tokenizer(args.model), _protocol(args))
    metric = None if args.metric == "any" else args.metric
    rules = SampleRules(args.layout, metric, args.thought_only, args.max_context, args.max_target, args.seed)
    chosen = SampleSelection(tokens, rules)
    if args.traces:
        records = read_records(*args.traces, skip_broken=chosen.bad.add)
        chosen.add_records(tqdm(records, desc="traces", unit="trace", mininterval=5))
    for path in args.published:
        samples = tqdm(read_samples(path), desc=path.name, unit="sample", mininterval=5)
        chosen.add_published(samples, path.name)
    if chosen.bad.count and not args.skip_bad_rows:
        raise SftDataError(f"nothing was written, because of {chosen.bad.refusal()}")
    if not chosen.rows:
        raise SftDataError(f"no sample is left, so nothing was written. {_counted(chosen.counts)}")
    splits = split_rows(chosen.rows, args.validation, args.seed)
    written = write_samples(args.out, splits, tokens, args.format)
    summary = _summary(args, chosen, splits)
    dropped, summarised = args.out / "dropped.jsonl", args.out / "sft_summary.json"
    # Ids and details may have half characters, which UTF-8 cannot hold.
    write_json_lines(dropped, chosen.dropped, ensure_ascii=True)
    write_json(summarised, summary, ensure_ascii=False)
    written += [dropped, summarised]
    _tell(args, summary, splits, written)
    for line in chosen.bad.left_out():
        print(line, file=sys.stderr)
    return summary


def _tokenizer(model: str) -> Any:
    try:
        tokenizer = load_tokenizer(model)
    except Exception as error:  # the Hub, the cache and the tokenizer's own code may raise anything
        first = str(error).strip().splitlines()[:1]
        raise SftDataError(
            f"--model {model}: its tokenizer cannot be loaded ({type(error).__name__}: {' '.join(first)}). "
            "Give a folder that has a model and its tokenizer, or a name on the Hub"
        ) from error
    if not tokenizer.chat_template:
        raise SftDataError(f"--model {model}: its tokenizer has no chat template; use an instruct model")
    return tokenizer


def _protocol(args: SftDataArguments) -> Protocol:
    try:
        prompt = Path(args.prompt).read_text(encoding="utf-8") if args.prompt else None
        protocol = load_protocol(args.protocol, prompt)
    except UnicodeDecodeError as error:
        raise SftDataError(f"--prompt {args.prompt}: not UTF-8 text: {error}") from error
    except ProtocolError as error:
        raise SftDataError(f"--protocol {args.protocol}: {error}") from error
    if protocol.rewrites_context:
        raise SftDataError(f"--protocol {args.protocol}: traces whose context is rewritten cannot be cut")
    if protocol.turns == "chat":
        raise SftDataError(
            f"--protocol {args.protocol}: traces whose turns are those of a chat template cannot be cut; "
            "use a protocol without `turns: chat`, such as agentic_rag_en"
        )
    return protocol


def _summary(
    args: SftDataArguments, chosen: SampleSelection, splits: Sequence[Sequence[SftRow]]
) -> dict[str, Any]:
    """Everything that is counted, as sft_summary.json has it."""
    reasons = Counter(entry["reason"] for entry in chosen.dropped)
    return {
        "model": args.model,
        "protocol": chosen.tokens.protocol.name,
        "layout": args.layout,
        "metric": args.metric,
        "seed": args.seed,
        "read": {name: count for name, count in sorted(chosen.counts.items()) if "left out" not in name},
        "left_out": {
            name: {"count": count, "meaning": REASONS[name]} for name, count in sorted(reasons.items())
        },
        "bad_rows": chosen.bad.count,
        "splits": {name: _numbers(rows) for name, rows in zip(("train", "validation"), splits, strict=True)},
        "quotation": f"a run of {RUN} words of a shown document, or a whole one of {SHORTEST} to {RUN} words",
        "llama_factory": {"template": "empty", "mask_history": args.layout == "cut"},
    }


def _numbers(rows: Sequence[SftRow]) -> dict[str, Any]:
    def longest(of: Iterable[int]) -> int:
        return max(of, default=0)

    return {
        "samples": len(rows),
        "questions": len({row.question for row in rows}),
        "kinds": dict(sorted(Counter(kind for row in rows for kind in kinds_of(row)).items())),
        "longest_context": longest(row.context_tokens for row in rows),
        "longest_target": longest(row.target_tokens for row in rows),
        "target_tokens": sum(row.target_tokens for row in rows),
    }


def _tell(
    args: SftDataArguments,
    summary: dict[str, Any],
    splits: Sequence[Sequence[SftRow]],
    written: Sequence[Path],
) -> None:
    """Print an example of each kind, the counts and the files."""
    shown = set()
    for row in splits[0]:
        if row.kind not in shown:
            shown.add(row.kind)
            print(_example(row))
    print(_counted(summary["read"]))
    for name, told in summary["left_out"].items():
        print(f"left out: {told['count']} {name}: {told['meaning']}")
    for name, told in summary["splits"].items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in told["kinds"].items())
        print(
            f"{name}: {told['samples']} samples of {told['questions']} questions"
            + (f" ({kinds})" if kinds else "")
        )
    for path in written:
        print(f"  {path}")
    if args.format != "verl":
        history = "true" if args.layout == "cut" else "false"
        print(f"in LLaMA-Factory: template: empty, mask_history: {history}")


def _example(row: SftRow) -> str:
    """A sample in a few lines. `ascii` keeps control characters of hostile texts off the terminal."""
    before = "" if row.kind == WHOLE else "".join(piece.text for piece in row.pieces[:-1])
    lines = [f"{row.kind}: {row.id}", f"  question  {ascii(row.question)}"]
    if before:
        lines.append(f"  context   ...{ascii(before[-160:])}")
    return "\n".join([*lines, *(f"  target    {ascii(target[:240])}" for target in row.targets)])


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
