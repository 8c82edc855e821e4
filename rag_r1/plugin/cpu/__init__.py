"""Support for veRL on a machine without an accelerator.

veRL 0.9.1 supports NVIDIA, Huawei and AMD platforms but no CPU. Seven small modules fill the gaps, each
through an extension point of veRL, vLLM or Python:

- ``platform``       the platform "cpu": gloo, shared-memory weight transfer, no device to select
- ``device``         a CPU implementation of what veRL calls on ``torch.cuda``
- ``engines``        FSDP2 engines registered for the device "cpu"
- ``vllm_worker``    a vLLM worker extension that reloads weights that vLLM has packed for oneDNN
- ``weight_transfer``  weights over TCP to separate engines, for ``trainer_mode=separate_async``
- ``sft_trainer``    starts veRL's SFT trainer with a process group that already exists
- ``distribution``   the distribution name under which veRL looks for vLLM

``recipes/platform/cpu.yaml`` has the matching settings.
"""
