"""`rag-r1 sft-data`: makes SFT samples from traces or from RAG-R1's published data.

samples.py selects the samples, segment.py cuts traces, and files.py writes the files. This module reads the
arguments, writes the summary and prints the counts.

    sft_summary.json     counts of what was read, left out and written
    dropped.jsonl        every trace and every sample that was left out, with the reason

Nothing is written before everything has been read, and no file is ever incomplete. After an interruption, the
same command can be run again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from rag_r1.agent.records import read_records, trajectory_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.first_rows import check_first_rows
from rag_r1.data.files.row_files import open_bytes, refuse_repeated, refuse_utf16
from rag_r1.data.sft_rows import SftRow
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.inference.tokenizer import load_tokenizer, why_not_loaded
from rag_r1.io.atomic_files import write_json, write_json_lines
from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import recorded_settings
from rag_r1.protocols import Protocol, load_protocol, load_with_prompt
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks
from rag_r1.sft.copy_check import QUOTATION
from rag_r1.sft.data_arguments import WRITTEN, SftDataArguments
from rag_r1.sft.files import SPLITS, write_samples
from rag_r1.sft.llama_factory import read_samples, sample_of
from rag_r1.sft.samples import SampleRules, SampleSelection, split_rows
from rag_r1.sft.segment import REASONS, WHOLE, UnusableSampleError, kinds_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DESCRIPTION = """\
Make data for supervised fine-tuning from traces with right answers, for `rag-r1 sft` (veRL's SFT trainer)
and for LLaMA-Factory. Each trace is cut at its searches and its answer into samples of four kinds; a
target is a turn that the policy generated and never text of a document.

example:
  rag-r1 sft-data --traces traces --model Qwen/Qwen2.5-7B-Instruct --protocol rag_r1_mq --out data/sft
  rag-r1 sft-data --published SFT_train_data_mq.json --model Qwen/Qwen2.5-7B-Instruct --protocol rag_r1_mq \\
      --out data/sft
"""


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 sft-data`; returns 0, or 1 with nothing written if the data cannot be made."""
    args = read_arguments(
        SftDataArguments, arguments, prog="rag-r1 sft-data", description=_DESCRIPTION, check=check_start
    )
    tokens = check_start(args)
    if args.check_only:
        sources = ", ".join(map(str, [*args.traces, *args.published]))
        count = len(select_samples(args, tokens).rows)
        print(f"all checks passed: {count:,} samples of {sources} would be written into {args.out}")
        return 0
    with recorded_settings("rag-r1 sft-data", args):
        make_samples(args, tokens)
    return 0


def check_start(args: SftDataArguments) -> SftTokens:
    """Check the folder, the model, the protocol and the first rows; returns the encoder of rows.

    Raises StartError with all problems.
    """
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 sft-data", writes=WRITTEN)
        for paths in (args.traces, args.published):
            checks.run(refuse_repeated, paths)
        tokenizer = checks.run(_load_tokenizer, args.model)
        protocol = checks.run(_load_protocol, args.protocol, args.prompt)
        if args.prompt is not None:  # a wrong protocol must not hide a fault of the prompt
            checks.run(_load_protocol, "rag_r1_mq", args.prompt)
        for path in args.traces:
            checks.run(_check_traces, path)
        for path in args.published:
            checks.run(check_first_rows, path, read_samples(path), partial(_check_sample, protocol=protocol))
    return SftTokens(tokenizer, protocol)


def _check_traces(path: Path) -> None:
    """Raise DataError if no record at the beginning can be used, with the first line that is not a record."""
    bad = BadRows()
    try:
        records = read_records(path, skip_broken=bad.add)
        check_first_rows(path, enumerate(records, 1), trajectory_of)
    except DataError as error:
        if not bad.first:
            raise
        with open_bytes(path) as file:
            refuse_utf16(path, file, "records of `rag-r1 traces`")
        raise DataError(f"{bad.first[0]}: correct it, or give another file") from error


def _check_sample(row: Any, protocol: Protocol | None) -> None:
    """Raise DataError if a row is not a published sample. Without a `protocol`, since the user's could not be
    loaded, a shipped one is used."""
    with suppress(UnusableSampleError):  # it is a sample, which `make_samples` will leave out
        sample_of(row, protocol or load_protocol("rag_r1_mq"), "")


def make_samples(args: SftDataArguments, tokens: SftTokens) -> dict[str, Any]:
    """Select samples and write the files; returns the summary. Raises the errors of `select_samples`, and
    OSError if a file cannot be written."""
    selection = select_samples(args, tokens)
    splits = split_rows(selection.rows, args.validation, args.seed)
    written = write_samples(args.out, splits, tokens, args.format)
    summary = _summary(args, selection, splits)
    dropped_file = args.out / "dropped.jsonl"
    summary_file = args.out / "sft_summary.json"
    # In ASCII, because ids and details may have lone surrogates, which UTF-8 cannot encode.
    write_json_lines(dropped_file, selection.dropped, ensure_ascii=True)
    write_json(summary_file, summary, ensure_ascii=False)
    written += [dropped_file, summary_file]
    _print_summary(args, summary, splits[0], written)
    for line in selection.bad.left_out():
        print(line, file=sys.stderr)
    return summary


def select_samples(args: SftDataArguments, tokens: SftTokens) -> SampleSelection:
    """Read the traces and published samples, and select samples.

    Raises RunError if there are bad rows that may not be skipped, or if no sample is left, and DataError if a
    file cannot be read.
    """
    metric = None if args.metric == "any" else args.metric
    rules = SampleRules(args.layout, metric, args.thought_only, args.max_context, args.max_target, args.seed)
    selection = SampleSelection(tokens, rules)
    if args.traces:
        records = read_records(*args.traces, skip_broken=selection.bad.add)
        selection.add_records(tqdm(records, desc="traces", unit="trace", mininterval=5))
    for path in args.published:
        samples = tqdm(read_samples(path), desc=path.name, unit="sample", mininterval=5)
        selection.add_published(samples, path.name)
    if selection.bad.count and not args.skip_bad_rows:
        raise RunError(f"nothing was written, because of {selection.bad.refusal()}")
    if not selection.rows:
        hint = ""
        if any(entry["reason"] == "other_protocol" for entry in selection.dropped):
            hint = ". The traces were made in another protocol: give it as --protocol"
        counts = _format_counts(selection.counts + selection.left_out)
        raise RunError(f"no sample is left, so nothing was written. {counts}{hint}")
    return selection


def _load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model. Raises RunError if it cannot be loaded, or has no chat template."""
    try:
        tokenizer = load_tokenizer(model)
    except Exception as error:  # the Hub, the cache and the tokenizer's own code may raise anything
        raise RunError(
            f"--model {model}: its tokenizer cannot be loaded: {why_not_loaded(model, error)}; give a folder "
            "that has a model and its tokenizer, or a name on the Hub"
        ) from error
    if not tokenizer.chat_template:
        raise RunError(f"--model {model}: its tokenizer has no chat template; use an instruct model")
    return tokenizer


def _load_protocol(name: str, prompt: str | None) -> Protocol:
    """Load a protocol with its prompt. Raises RunError if traces in this protocol cannot be cut."""
    protocol = load_with_prompt(name, prompt)
    if protocol.rewrites_context:
        raise RunError(f"--protocol {name}: traces whose context is rewritten cannot be cut")
    if protocol.turns == "chat":
        raise RunError(
            f"--protocol {name}: traces whose turns are those of a chat template cannot be cut; "
            "use a protocol without `turns: chat`, such as agentic_rag_en"
        )
    return protocol


def _summary(
    args: SftDataArguments, selection: SampleSelection, splits: Sequence[Sequence[SftRow]]
) -> dict[str, Any]:
    """Return the contents of sft_summary.json."""
    reasons = Counter(entry["reason"] for entry in selection.dropped)
    return {
        "model": args.model,
        "protocol": selection.tokens.protocol.name,
        "layout": args.layout,
        "metric": args.metric,
        "seed": args.seed,
        "read": dict(sorted(selection.counts.items())),
        "left_out": {
            name: {"count": count, "meaning": REASONS[name]} for name, count in sorted(reasons.items())
        },
        "bad_rows": selection.bad.count,
        "splits": {name: _counts(rows) for name, rows in zip(SPLITS, splits, strict=True)},
        "quotation": QUOTATION,
        "llama_factory": {"template": "empty", "mask_history": args.layout == "cut"},
    }


def _counts(rows: Sequence[SftRow]) -> dict[str, Any]:
    """Return the counts of a split in sft_summary.json."""
    return {
        "samples": len(rows),
        "questions": len({row.question for row in rows}),
        "kinds": dict(sorted(Counter(kind for row in rows for kind in kinds_of(row)).items())),
        "longest_context": max((row.context_tokens for row in rows), default=0),
        "longest_target": max((row.target_tokens for row in rows), default=0),
        "target_tokens": sum(row.target_tokens for row in rows),
    }


def _print_summary(
    args: SftDataArguments, summary: dict[str, Any], train_rows: Sequence[SftRow], written: Sequence[Path]
) -> None:
    """Print an example of each kind of training sample, the counts and the files."""
    printed = set()
    for row in train_rows:
        if row.kind not in printed:
            printed.add(row.kind)
            print(_example(row))
    print(_format_counts(summary["read"]))
    for name, counts in summary["left_out"].items():
        print(f"left out: {counts['count']} {name}: {counts['meaning']}")
    for name, counts in summary["splits"].items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counts["kinds"].items())
        samples = f"{counts['samples']} samples of {counts['questions']} questions"
        print(f"{name}: {samples} ({kinds})" if kinds else f"{name}: {samples}")
    for path in written:
        print(f"  {path}")
    if args.format != "verl":
        history = "true" if args.layout == "cut" else "false"
        print(f"in LLaMA-Factory: template: empty, mask_history: {history}")


def _example(row: SftRow) -> str:
    """Format a sample in a few lines, without the control characters that hostile texts may contain."""
    context = "" if row.kind == WHOLE else "".join(piece.text for piece in row.pieces[:-1])
    lines = [f"{row.kind}: {terminal_text(row.id)}", f"  question  {ascii(row.question)}"]
    if context:
        lines.append(f"  context   ...{ascii(context[-160:])}")
    return "\n".join([*lines, *(f"  target    {ascii(target[:240])}" for target in row.targets)])


def _format_counts(counts: dict[str, int]) -> str:
    """Format counts on one line, in the order of their names."""
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
