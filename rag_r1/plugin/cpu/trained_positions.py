"""Log-probabilities of the trained tokens only, for rows that are packed.

veRL computes the log-probability and the entropy of every token of a row, and its losses and metrics then
mask those that the policy did not write (verl/workers/utils/losses.py, `sft_loss` and `ppo_loss`). Of a
search agent's rows nine tenths are prompt and search results. On a GPU their logits cost little; on a CPU,
for a small model with a large vocabulary, they take up to a third of an update.

An engine with `TrainedPositionsMixin` passes on to the last layer only the hidden states from which a trained
token is predicted, and puts its results back to where veRL expects them, with zeros between. A forward hook
does the former, since veRL's fused forward takes the labels of these positions as `shift_labels` but has no
argument for the positions (verl/models/transformers/dense_common.py, `forward_with_torch_backend`).
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict


class TrainedPositionsMixin:
    """Mixin for a language-model engine with `use_remove_padding` and `use_fused_kernels`.

    In the bases of an engine it must precede `FSDPEngineWithLMHead`. With other settings it changes nothing.
    """

    #: Positions in the packed rows of the present micro-batch, or None for all.
    _positions: torch.Tensor | None = None

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        module.get_decoder().register_forward_hook(self._keep_positions)
        return super()._build_fsdp_module(module)

    def _keep_positions(self, module: torch.nn.Module, args: tuple, output: Any) -> Any:
        """Reduce the hidden states of shape (1, tokens, dimensions) to those of the positions."""
        if self._positions is not None:
            output.last_hidden_state = output.last_hidden_state.index_select(1, self._positions)
        return output

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return veRL's inputs, with the labels of the trained positions only."""
        inputs, output_args = super().prepare_model_inputs(micro_batch=micro_batch)
        self._positions = None
        # Behind the packed rows there is padding if several ranks have a part of them each.
        if "shift_labels" in inputs and not output_args["pad_size"]:
            self._positions = trained_positions(micro_batch)
            inputs["shift_labels"] = inputs["shift_labels"].index_select(1, self._positions)
        return inputs, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Return veRL's outputs; log-probability and entropy of other positions are 0."""
        if (positions := self._positions) is not None:
            self._positions = None
            zeros = torch.zeros_like(micro_batch["input_ids"].values(), dtype=torch.float32)[None]
            output.log_probs = zeros.index_copy(1, positions, output.log_probs)
            output.entropy = zeros.to(output.entropy.dtype).index_copy(1, positions, output.entropy)
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)


def trained_positions(micro_batch: TensorDict) -> torch.Tensor:
    """Return the positions in the packed rows whose next token is trained, in ascending order; at least one.

    `loss_mask` has a flag for each token of a row (supervised fine-tuning) or of its response (reinforcement
    learning), the latter as rows of different lengths or padded behind to the same one. Padded responses have
    `prompts`, padded in front, and the `attention_mask` of both, as for veRL's `no_padding_2_padding`.
    """
    offsets, mask = micro_batch["input_ids"].offsets(), micro_batch["loss_mask"]
    if mask.is_nested:
        # The flags are of the last tokens of each row.
        row_starts = offsets[1:] - mask.offsets().diff()
        mask = mask.to_padded_tensor(0)
    else:
        width = micro_batch["prompts"].shape[1]
        row_starts = offsets[:-1] + micro_batch["attention_mask"][:, :width].sum(dim=1)
    rows, columns = mask.nonzero(as_tuple=True)
    trained = torch.zeros_like(micro_batch["input_ids"].values(), dtype=torch.bool)
    trained[row_starts[rows] + columns] = True
    # Rolled as veRL rolls the labels, so that the first token of a row belongs to the end of the row before.
    positions = trained.roll(-1).nonzero().flatten()
    # Without a trained token one position keeps the loss, which is 0, a function of the parameters.
    return positions if len(positions) else positions.new_zeros(1)
