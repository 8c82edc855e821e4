"""veRL on a machine without an accelerator.

veRL 0.9.1 names NVIDIA, Huawei and AMD platforms and no CPU. Six small modules fill the gaps, each through
an extension point that veRL, vLLM or Python offers:

- ``platform``       the platform "cpu": gloo, shared-memory weight transfer, no device to select
- ``device``         what veRL calls on ``torch.cuda``, answered for the CPU
- ``engines``        FSDP2 engines registered for the device "cpu"
- ``vllm_worker``    a vLLM worker extension that reloads weights which vLLM has packed for oneDNN
- ``weight_transfer``  weights over TCP to engines of their own, for ``trainer_mode=separate_async``
- ``distribution``   the distribution name under which veRL looks for vLLM

``recipes/platform/cpu.yaml`` holds the settings that go with them.
"""
