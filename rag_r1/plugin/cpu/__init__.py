"""Support for veRL on a machine without an accelerator.

veRL 0.9.1 supports NVIDIA, Huawei and AMD platforms but no CPU. Nine small modules fill the gaps, each
through an extension point of veRL, vLLM or Python:

- ``platform``          the platform "cpu": gloo, weight transfer through shared memory, no device to select
- ``device``            a CPU implementation of the functions that veRL calls on ``torch.cuda``
- ``engines``           FSDP engines for the device "cpu"
- ``packed_attention``  attention over rows without padding, for which veRL needs FlashAttention
- ``trained_positions`` log-probabilities of the trained tokens of such rows only
- ``vllm_worker``       a vLLM worker extension that replaces weights which vLLM has packed for oneDNN
- ``weight_transfer``   sends weights over TCP to separate engines, for ``trainer_mode=separate_async``
- ``sft_trainer``       starts veRL's SFT trainer with a process group that already exists
- ``distribution``      makes veRL find vLLM's CPU build, whose distribution has another name

``recipes/platform/cpu.yaml`` has the matching settings.
"""
