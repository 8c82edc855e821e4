"""The agent core: it runs a question turn by turn and keeps the tokens and the record of the episode.

`episode.py` has the turn loop, `tokens/ledger.py` the tokens for training, `trajectory.py` the record and
`budget.py` the limits. The package is plain asyncio and imports neither veRL nor torch nor an HTTP client.
"""

from rag_r1.agent.budget import Budget
from rag_r1.agent.episode import Episode
from rag_r1.agent.events import Event, Observer
from rag_r1.agent.failures import KINDS, FailurePolicy, FailureRecord
from rag_r1.agent.interfaces import Codec, Engine, Generation, Tool, UnknownTokenError
from rag_r1.agent.replay import ReplayTurn
from rag_r1.agent.self_consistency import sample_paths
from rag_r1.agent.tokens.codec import TokenizerCodec
from rag_r1.agent.tokens.ledger import Capacity, Ledger, TrainingRow
from rag_r1.agent.trajectory import STATUSES, CallRecord, Trajectory, Turn

__all__ = [
    "KINDS",
    "STATUSES",
    "Budget",
    "CallRecord",
    "Capacity",
    "Codec",
    "Engine",
    "Episode",
    "Event",
    "FailurePolicy",
    "FailureRecord",
    "Generation",
    "Ledger",
    "Observer",
    "ReplayTurn",
    "TokenizerCodec",
    "Tool",
    "TrainingRow",
    "Trajectory",
    "Turn",
    "UnknownTokenError",
    "sample_paths",
]
