"""Finds the protocol whose tags a reward term looks for.

A term is given the protocol of the run. Without one, as in a script that scores records, the trajectory names
a shipped protocol.
"""

from __future__ import annotations

from functools import lru_cache

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol, load_protocol


def trajectory_protocol(trajectory: Trajectory, protocol: Protocol | None) -> Protocol:
    """Return `protocol` or, if it is None, the shipped protocol that the trajectory names. Raises
    ProtocolError if there is none of that name."""
    return protocol or _shipped(trajectory.protocol)


_shipped = lru_cache(maxsize=64)(load_protocol)
