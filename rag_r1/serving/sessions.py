"""Chat sessions: each is a task that waits for admission, plays its episode and streams its events.

The app (app.py) begins a session for each request with `ChatSessions.begin`, and cancels its task when the
client has gone; this also cancels the episode and its requests to the model. However a task ends, its slot is
then freed.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from rag_r1.agent import Trajectory
from rag_r1.http_server.errors import ErrorReply, error_body
from rag_r1.http_server.stopping import STOPPING
from rag_r1.runs.markdown import one_line_text
from rag_r1.serving.admission import AdmissionQueue, AdmissionTicket
from rag_r1.serving.agent import ChatAgent
from rag_r1.serving.citations import citations
from rag_r1.serving.conversation import Conversation, fit_history
from rag_r1.serving.metrics import ChatMetrics
from rag_r1.serving.stream_events import EventStreamer, Reasoning, StreamEvent
from rag_r1.serving.wire import DONE, KEEP_ALIVE, ChunkBuilder, episode_ending, finish_reason, sse

logger = logging.getLogger(__name__)

#: Seconds without an event after which a comment is sent, since proxies close silent connections.
SILENT_S = 15.0
#: Separates the reasoning of two turns.
_TURN_BREAK = "\n\n"
#: Statuses of failed episodes, each with its error.
FAILURES = {
    "bad_row": ErrorReply(
        400, "too_long", "the question is longer than the model's prompt may be: shorten it"
    ),
    "tool_failure": ErrorReply(502, "search_failed", "the search did not answer: try again"),
    "engine_failure": ErrorReply(502, "model_failed", "the model did not answer: try again"),
    "error": ErrorReply(500, "internal", "the chat failed; the server's log says why"),
}


@dataclass(frozen=True)
class ChatParameters:
    """The question and the options of a request."""

    conversation: Conversation
    temperature: float = 0.0
    seed: int = 0
    #: Whether the stream ends with the numbers of tokens.
    include_usage: bool = False
    #: Keys of the request that have no effect.
    ignored: tuple[str, ...] = ()


@dataclass
class ChatSession:
    """One chat: a question that waits, is answered or has been answered."""

    parameters: ChatParameters
    ticket: AdmissionTicket
    #: Plays the episode and returns its trajectory.
    task: asyncio.Task[Trajectory] = field(init=False)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    #: The events of the episode; None after the last one.
    events: asyncio.Queue[StreamEvent | None] = field(default_factory=asyncio.Queue)
    #: The number of earlier questions that the policy was shown.
    history: int = 0

    @property
    def details(self) -> dict[str, object]:
        """How the request was read: the number of earlier questions, and the keys that were ignored."""
        ignored = [*self.parameters.conversation.ignored, *self.parameters.ignored]
        return {"history": self.history, "ignored": ignored}


@dataclass
class ChatSessions:
    """Begins chats, streams them to clients, and cancels them when the server stops."""

    agent: ChatAgent
    admission: AdmissionQueue
    metrics: ChatMetrics
    #: The name of the model in the API.
    name: str
    #: The most earlier questions that the policy is shown.
    max_history: int
    #: The accepted answers by question, where they are known.
    golds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Whether the server is stopping: all chats were cancelled, and no other may begin.
    stopped: bool = field(default=False, init=False)
    _running: set[asyncio.Task[Trajectory]] = field(default_factory=set, init=False)

    def begin(self, parameters: ChatParameters) -> ChatSession:
        """Begin a chat, which may have to wait for a slot. Must not be called after `stop`. Raises
        ServerFullError if too many chats wait."""
        chat = ChatSession(parameters, self.admission.enter())
        chat.task = asyncio.create_task(self._play(chat))
        self._running.add(chat.task)
        chat.task.add_done_callback(partial(self._finish, chat))
        return chat

    def stop(self) -> None:
        """Cancel all chats, including those that wait. Their clients get the error STOPPING."""
        self.stopped = True
        for task in self._running:
            task.cancel()

    async def _play(self, chat: ChatSession) -> Trajectory:
        """Wait for a slot, then play the episode with as much of the history as fits into the prompt."""
        entered_s = time.monotonic()
        await chat.ticket.wait_for_slot()
        self.metrics.wait.observe(time.monotonic() - entered_s)
        parameters = chat.parameters
        question, chat.history = await asyncio.to_thread(
            fit_history, parameters.conversation, self.max_history, self.agent.prompt_fits
        )
        streamer = EventStreamer(self.agent.setup.protocol, chat.events.put_nowait)
        return await self.agent.play(
            question,
            temperature=parameters.temperature,
            seed=parameters.seed,
            observer=streamer,
            on_text=streamer.generation_started,
        )

    def _finish(self, chat: ChatSession, task: asyncio.Task[Trajectory]) -> None:
        """Free the slot, count the chat and log its end. The texts of questions are private and not
        logged."""
        finished = not task.cancelled() and task.exception() is None
        self._running.discard(task)
        chat.ticket.leave(finished=finished)
        chat.events.put_nowait(None)
        if finished:
            trajectory = task.result()
            self.metrics.count_chat(trajectory)
            searches, seconds = trajectory.n_searches, trajectory.seconds
            logger.info("%s: %s, searches: %d, %.1f s", chat.id, trajectory.status, searches, seconds)
            if trajectory.status in FAILURES:
                details = "; ".join(one_line_text(failure.detail) for failure in trajectory.failures)
                logger.warning("%s: %s: %s", chat.id, trajectory.status, details)
        elif task.cancelled():
            if not self.stopped:
                self.metrics.abandoned.inc()
            logger.info("%s: %s", chat.id, "ended by the stop" if self.stopped else "abandoned")
        else:
            logger.error("%s failed", chat.id, exc_info=task.exception())

    async def stream(self, chat: ChatSession) -> AsyncIterator[bytes]:
        """Yield the chat as server-sent events, up to the answer and [DONE]."""
        chunks = ChunkBuilder(chat.id, self.name)
        yield chunks.delta(role="assistant", content="")
        if not chat.ticket.is_admitted:
            yield chunks.event("queued", {"ahead": chat.ticket.ahead})
        is_first = True
        while True:
            try:
                event = await asyncio.wait_for(chat.events.get(), SILENT_S)
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            if event is None:
                break
            if isinstance(event, Reasoning):
                yield chunks.delta(reasoning_content=_reasoning_text(event, is_first=is_first))
                is_first = False
            else:
                yield chunks.event(event.kind, event.data)
        for piece in self._last_chunks(chat, chunks):
            yield piece
        yield DONE

    def _last_chunks(self, chat: ChatSession, chunks: ChunkBuilder) -> list[bytes]:
        """Return the last chunks of a chat whose task is done: its answer with citations and status, or its
        error."""
        if chat.task.cancelled() or chat.task.exception() is not None:
            failure = STOPPING if self.stopped and chat.task.cancelled() else FAILURES["error"]
            return [sse(error_body(failure.code, failure.reason))]
        trajectory = chat.task.result()
        if failure := FAILURES.get(trajectory.status):
            return [sse(error_body(failure.code, failure.reason))]
        golds = self.golds.get(chat.parameters.conversation.question, ())
        pieces = [chunks.delta(content=trajectory.answer)] if trajectory.answer else []
        pieces += [
            chunks.event("citations", citations(trajectory, golds)),
            chunks.event("ended", {**episode_ending(trajectory), **chat.details}),
            chunks.delta(finish=finish_reason(trajectory)),
        ]
        return [*pieces, chunks.usage(trajectory)] if chat.parameters.include_usage else pieces


def take_reasoning(chat: ChatSession) -> str:
    """Empty the events of a chat that has ended, and return the reasoning as a stream would send it."""
    text = ""
    while not chat.events.empty():
        event = chat.events.get_nowait()
        if isinstance(event, Reasoning):
            text += _reasoning_text(event, is_first=not text)
    return text


def _reasoning_text(piece: Reasoning, *, is_first: bool) -> str:
    """Return a piece of reasoning for clients, separated from the reasoning of an earlier turn."""
    return _TURN_BREAK + piece.text if piece.starts_turn and not is_first else piece.text
