"""Compares padded with packed rows, in fp32 and in bf16, for a model that is trained on a CPU.

    python benchmarks/packed_rows.py --model models/smollm2-135m

The rows are of random tokens. For each way log-probabilities are computed as veRL does without FlashAttention
(a fused linear layer, in chunks), and their gradients. The figures are those of the fastest of two passes, in
tokens a second without padding. Padded rows have the length of the longest one (`platform=cpu`); packed ones
are joined, first with the log-probabilities of all tokens, then with those of the trained ones only, as
`platform=cpu_packed` and `platform=cpu_bf16` have it (rag_r1/plugin/cpu/trained_positions.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from transformers import AutoModelForCausalLM
from verl.utils.experimental.torch_functional import FusedLinearForPPO

from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from rag_r1.runs.markdown import print_table

_PASSES = 2
#: Lengths of the first 16 rows of `recipes/real_small`'s fine-tuning.
_LENGTHS = [74, 326, 88, 91, 334, 575, 79, 306, 74, 301, 82, 262, 84, 81, 333, 89]


class PackedRowsArguments(Arguments):
    """The model and the rows."""

    model: str = argument("folder of a Hugging Face model", "DIR")
    lengths: list[Positive] = argument(
        "tokens of each row (default: rows of a search agent)", ("N", ...), default=_LENGTHS
    )
    trained_every: Positive = argument("one of so many tokens is trained", "N", default=10)
    threads: Positive = argument("threads of torch", default=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns the exit status."""
    prog = "python benchmarks/packed_rows.py"
    args = read_arguments(PackedRowsArguments, arguments, prog=prog, description=__doc__)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print_table(["rows", "numbers", "tokens/s", "times"], _figures(args))
    return 0


def _figures(args: PackedRowsArguments) -> Iterator[list[str]]:
    """Yield a row of the table for each way, with its speed and how many times as fast as the first it is."""
    rows = [torch.randint(10, 1000, (length,)) for length in args.lengths]
    first = None
    for numbers in ("fp32", "bf16"):
        for name in ("padded", "packed", "packed, trained tokens only"):
            inputs = _padded(rows) if name == "padded" else _packed(rows)
            attention = "sdpa" if name == "padded" else PACKED_SDPA
            step = args.trained_every if "trained" in name else 1
            model = AutoModelForCausalLM.from_pretrained(
                args.model, attn_implementation=attention, dtype=torch.float32
            )
            speed = sum(args.lengths) / min(_pass_s(model, inputs, numbers, step) for _ in range(_PASSES))
            first = first or speed
            yield [name, numbers, f"{speed:,.0f}", f"{speed / first:.1f}"]


def _packed(rows: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the rows as one, with positions that start again with each of them."""
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    return {"input_ids": torch.cat(list(rows))[None], "position_ids": positions[None]}


def _padded(rows: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the rows with padding behind them, and the mask of their tokens."""
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": torch.arange(ids.shape[1])[None] < lengths[:, None]}


def _pass_s(model: torch.nn.Module, inputs: dict[str, torch.Tensor], numbers: str, step: int) -> float:
    """Return the seconds of the log-probabilities of every `step`-th token and of their gradients."""
    log_probs_of = FusedLinearForPPO(impl_backend="torch")
    started = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16) if numbers == "bf16" else nullcontext():
        hidden = model.model(**inputs, use_cache=False).last_hidden_state[:, ::step]
        labels = torch.roll(inputs["input_ids"], -1, 1)[:, ::step]
        log_probs, _ = log_probs_of.forward(
            hidden_states=hidden, vocab_weights=model.lm_head.weight, input_ids=labels, temperature=1.0
        )
    log_probs.sum().backward()
    model.zero_grad()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
