"""Finds the protocol whose tags a term uses: the run's own, or the one that a trajectory names."""

from __future__ import annotations

from functools import lru_cache

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, load_protocol


def trajectory_protocol(trajectory: Trajectory, protocol: Protocol | None) -> Protocol:
    """Returns `protocol`, or the shipped one that the trajectory names if it is None. Raises ProtocolError if
    there is no shipped one of that name."""
    return protocol or _shipped(trajectory.protocol)


_shipped = lru_cache(maxsize=64)(load_protocol)
