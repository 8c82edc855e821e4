"""The protocol that a term needs for its tags: the run's own, or the shipped one that a trajectory names."""

from __future__ import annotations

from functools import lru_cache

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, load_protocol


def protocol_of(trajectory: Trajectory, protocol: Protocol | None) -> Protocol:
    """`protocol` if it is given. Raises ProtocolError if it is not and the trajectory's is no shipped one."""
    return protocol or _shipped(trajectory.protocol)


@lru_cache(maxsize=64)
def _shipped(name: str) -> Protocol:
    return load_protocol(name)
