"""The search agent as a Python API, which takes questions and returns trajectories.

    from rag_r1 import SearchAgent

    with SearchAgent(model="Qwen/Qwen2.5-7B-Instruct", base_url="http://127.0.0.1:8001/v1") as agent:
        print(agent.ask("Who founded Zanmu Motors?").answer)

The settings are the flags of `rag-r1 serve`, so questions are played as in the chat and in an evaluation. The
agent is asynchronous and runs in a separate thread (anyio's portal). Therefore these methods also work where
an event loop is already running, as in a notebook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rag_r1.agent import Trajectory
from rag_r1.serving.agent import ChatAgent, Play, open_agent
from rag_r1.serving.arguments import ChatAgentArguments, require_one_agent
from rag_r1.serving.launch import check_launch, launch_agent


class SearchAgent:
    """A model that searches, to be used in a `with` block, which starts and stops the servers that it needs.

    The most important settings are:

        model, base_url            a model on an OpenAI-compatible server
        model                      without base_url: a folder, which is served here with vLLM
        retriever_url, documents   a retrieval server, or a folder that is indexed here
        protocol                   the protocol that the model was trained with
        overrides                  a list of keys such as `rag_r1.agent.max_turns=6`
        demo                       True for the demo's model and search, without the settings above

    Raises ArgumentsError, a ValueError, for unknown or contradictory settings.
    """

    def __init__(self, **settings: Any):
        self.args = ChatAgentArguments(**settings)
        require_one_agent(self.args)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._agent: ChatAgent | None = None

    def __enter__(self) -> SearchAgent:
        """Start the servers and send test requests. Raises RunError, which names a server that does not
        answer, and OSError if the folder `out` cannot be used."""
        check_launch(self.args)
        with ExitStack() as stack:
            launched = stack.enter_context(launch_agent(self.args))
            self._portal = stack.enter_context(start_blocking_portal())
            opened = self._portal.wrap_async_context_manager(open_agent(launched.evaluation))
            self._agent = stack.enter_context(opened)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._portal = self._agent = None
        self._stack.close()

    def ask(self, question: str, *, temperature: float = 0.0, seed: int = 0) -> Trajectory:
        """Play one episode and return its trajectory, with the answer (`.answer`, None if there is none), the
        turns with their queries and passages (`.turns`), and the final status (`.status`).

        Temperature 0 is greedy. The failure of a server is recorded in `.failures` and not raised. Raises
        RuntimeError as `ask_all` does."""
        return self.ask_all([question], temperature=temperature, seed=seed)[0]

    def ask_all(
        self, questions: Iterable[str], *, temperature: float = 0.0, seed: int = 0
    ) -> list[Trajectory]:
        """Play an episode for each question and return the trajectories in the order of the questions. The
        setting `in_flight` (32 by default) limits how many are played concurrently. Raises RuntimeError
        outside of a `with` block."""
        if self._portal is None or self._agent is None:
            raise RuntimeError("SearchAgent is not open: use it in a `with` block")
        play = partial(self._agent.play, temperature=temperature, seed=seed)
        return self._portal.call(_play_all, play, list(questions), self.args.in_flight)


async def _play_all(play: Play, questions: list[str], in_flight: int) -> list[Trajectory]:
    """Play all questions, at most `in_flight` of them concurrently."""
    slots = asyncio.Semaphore(in_flight)

    async def play_in_turn(question: str) -> Trajectory:
        async with slots:
            return await play(question)

    return await asyncio.gather(*map(play_in_turn, questions))
