"""Transfers weights from the trainer to separate engines on a CPU, for `trainer_mode=separate_async`.

That mode requires a checkpoint engine other than `naive` (trainer_separate_async.py,
`PPOTrainerSeparateAsync`), and those of veRL need NCCL, RDMA or similar. This one sends the weights over TCP
with ZeroMQ, which veRL's engines use for their metadata. Each worker of an engine listens, and the first
trainer rank sends every tensor to all of them. A message has two frames: a JSON header (name, dtype, shape)
and the tensor's bytes. An empty header ends the transfer. The sockets are bound to the loopback address,
since a run on CPUs uses a single machine.

``actor_rollout_ref.rollout.checkpoint_engine.backend=tcp`` selects this engine; recipes/platform/cpu.yaml
names this module as ``custom_backend_module``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import torch
import zmq
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

#: Milliseconds without progress after which a transfer fails, so that the run does not wait forever.
TIMEOUT_MS = 600_000


@CheckpointEngineRegistry.register("tcp")
class TCPCheckpointEngine(CheckpointEngine):
    """veRL's checkpoint engine over TCP on one machine. Sender and receivers each have an instance, and its
    `prepare` is called first."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self._context = zmq.Context()
        self._inbox: zmq.Socket | None = None
        self._outboxes: list[zmq.Socket] = []

    def prepare(self) -> str:
        """Start to listen on a free port, and return the address."""
        self._inbox = self._socket(zmq.PULL)
        return f"tcp://127.0.0.1:{self._inbox.bind_to_random_port('tcp://127.0.0.1')}"

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[str]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the arguments of `init_process_group` for the trainer's ranks and for the engines' workers.

        The first rank gets the addresses of all workers, the other ranks and the workers get none. `metadata`
        has the results of `prepare`, first of the ranks and then of the workers.
        """
        receivers = metadata[actor_wg_world_size:]
        return (
            {"receivers": [receivers, *[[]] * (actor_wg_world_size - 1)]},
            {"receivers": [[]] * rollout_world_size},
        )

    def init_process_group(self, receivers: list[str]) -> None:
        """Connect to the listening workers."""
        for address in receivers:
            self._outboxes.append(self._socket(zmq.PUSH))
            self._outboxes[-1].connect(address)

    def finalize(self) -> None:
        """Close the sockets that `prepare` and `init_process_group` have opened."""
        for socket in [*self._outboxes, *([self._inbox] if self._inbox else [])]:
            socket.close(linger=TIMEOUT_MS)
        self._inbox, self._outboxes = None, []

    async def send_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None
    ) -> None:
        """Send every weight. All trainer ranks iterate, since they gather each tensor together, but only the
        rank with receivers sends it. Raises zmq.Again if a receiver takes nothing for TIMEOUT_MS."""
        for name, weight in weights:
            if self._outboxes:
                await self._send(*_pack(name, weight))
        await self._send(b"{}", b"")

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield the weights in the order in which they were sent. Raises zmq.Again if the sender is silent
        for TIMEOUT_MS, and ValueError for a weight of an unknown dtype."""
        while True:
            header, data = await asyncio.to_thread(self._inbox.recv_multipart)
            fields = json.loads(header)
            if not fields:
                return
            yield fields["name"], _unpack(fields, data)

    async def _send(self, header: bytes, data: bytes) -> None:
        """Send a message to every receiver."""
        for socket in self._outboxes:
            await asyncio.to_thread(socket.send_multipart, [header, data])

    def _socket(self, kind: int) -> zmq.Socket:
        """Return a new socket of a kind of ZeroMQ, with time limits."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        socket.setsockopt(zmq.SNDTIMEO, TIMEOUT_MS)
        return socket


def _pack(name: str, weight: torch.Tensor) -> tuple[bytes, bytes]:
    """Return the two frames of a message, the header and the values."""
    weight = weight.detach().to("cpu").contiguous()
    header = {"name": name, "dtype": str(weight.dtype).removeprefix("torch."), "shape": list(weight.shape)}
    return json.dumps(header).encode(), weight.reshape(-1).view(torch.uint8).numpy().tobytes()


def _unpack(header: dict[str, Any], data: bytes) -> torch.Tensor:
    """Return the tensor of a message. Raises ValueError for a dtype that torch does not know."""
    dtype = getattr(torch, header["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"weight {header['name']!r} has the unknown dtype {header['dtype']!r}")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(header["shape"])
