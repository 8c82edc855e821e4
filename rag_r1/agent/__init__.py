"""The agent core: token ledger, budgets and the turn loop. Pure asyncio; no veRL, no torch, no HTTP."""

from rag_r1.agent.budget import Budget
from rag_r1.agent.codec import TokenizerCodec
from rag_r1.agent.events import Event, Observer
from rag_r1.agent.failures import KINDS, FailureNote, FailurePolicy
from rag_r1.agent.ledger import Capacity, Ledger, RowFull, Span, TrainingRow
from rag_r1.agent.loop import Episode
from rag_r1.agent.parts import Codec, Engine, Generation, Tool, UnknownToken
from rag_r1.agent.paths import play_paths
from rag_r1.agent.replay import PastTurn
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
    "FailureNote",
    "FailurePolicy",
    "Generation",
    "Ledger",
    "Observer",
    "PastTurn",
    "RowFull",
    "Span",
    "TokenizerCodec",
    "Tool",
    "TrainingRow",
    "Trajectory",
    "Turn",
    "UnknownToken",
    "play_paths",
]
