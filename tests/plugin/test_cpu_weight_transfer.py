"""Weights over TCP from a trainer to several engines, through veRL's checkpoint-engine interface."""

from __future__ import annotations

import asyncio

import pytest
import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry

from rag_r1.plugin.cpu import weight_transfer
from rag_r1.plugin.cpu.weight_transfer import TCPCheckpointEngine

WEIGHTS = {
    "embed": torch.randn(50, 8),
    "half": torch.randn(3, 4).to(torch.bfloat16),
    "transposed": torch.randn(4, 6).t(),
    "scalar": torch.tensor(3.5),
    "counts": torch.arange(5),
}


def transfer(senders, receivers, weights):
    """Run one weight update as veRL's CheckpointEngineManager does; what each receiver got."""
    metadata = [engine.prepare() for engine in [*senders, *receivers]]
    to_senders, to_receivers = TCPCheckpointEngine.build_topology(len(senders), len(receivers), metadata)
    for engines, kwargs in ((senders, to_senders), (receivers, to_receivers)):
        for i, engine in enumerate(engines):
            engine.init_process_group(**{name: values[i] for name, values in kwargs.items()})

    async def receive(engine):
        return [(name, weight) async for name, weight in engine.receive_weights(global_steps=1)]

    async def main():
        sending = [engine.send_weights(iter(weights.items()), global_steps=1) for engine in senders]
        return (await asyncio.gather(*map(receive, receivers), *sending))[: len(receivers)]

    got = asyncio.run(asyncio.wait_for(main(), 30))
    for engine in [*senders, *receivers]:
        engine.finalize()
    return got


def engines(n, master=False):
    return [CheckpointEngineRegistry.new("tcp", bucket_size=1, is_master=master) for _ in range(n)]


@pytest.mark.parametrize(("trainers", "replicas"), [(1, 1), (1, 3), (2, 2)])
def test_every_engine_gets_every_weight_as_it_was_update_after_update(trainers, replicas):
    senders, receivers = engines(trainers, master=True), engines(replicas)
    for factor in (1, 2):
        weights = {name: weight * factor for name, weight in WEIGHTS.items()}
        for got in transfer(senders, receivers, weights):
            assert [name for name, _ in got] == list(weights)
            for name, weight in got:
                assert weight.dtype == weights[name].dtype and torch.equal(weight, weights[name])


def test_a_trainer_that_falls_silent_ends_the_update_instead_of_hanging_it(monkeypatch):
    monkeypatch.setattr(weight_transfer, "TIMEOUT_MS", 50)
    (engine,) = engines(1)
    engine.prepare()

    async def receive():
        return [item async for item in engine.receive_weights()]

    with pytest.raises(Exception, match="temporarily unavailable"):
        asyncio.run(asyncio.wait_for(receive(), 30))
    engine.finalize()
