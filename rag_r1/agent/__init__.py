"""The agent core: token ledger, budgets and the turn loop. Pure asyncio; no veRL, no torch, no HTTP."""

from rag_r1.agent.budget import Budget
from rag_r1.agent.codec import TokenizerCodec
from rag_r1.agent.failures import KINDS, FailureNote, FailurePolicy
from rag_r1.agent.ledger import Ledger, TrainingRow
from rag_r1.agent.loop import Episode
from rag_r1.agent.parts import Codec, Engine, Generation, Searcher, UnknownToken
from rag_r1.agent.trajectory import STATUSES, Trajectory, Turn

__all__ = [
    "KINDS",
    "STATUSES",
    "Budget",
    "Codec",
    "Engine",
    "Episode",
    "FailureNote",
    "FailurePolicy",
    "Generation",
    "Ledger",
    "Searcher",
    "TokenizerCodec",
    "TrainingRow",
    "Trajectory",
    "Turn",
    "UnknownToken",
]
