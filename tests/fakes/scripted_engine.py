"""An engine that says given lines, a searcher that finds one thing, a codec whose tokens are characters."""

from rag_r1.agent import Budget, Episode, Generation
from rag_r1.protocols import Document
from rag_r1.tools import search_tools

SEARCH, ANSWER = "<think> t </think> <search> q </search>", "<answer> Rome </answer>"
FOUND = Document("1", '"Rome"\nRome is a city.', 0.5)
OBSERVED = '\n<information>\nDoc 1: "Rome"\nRome is a city.\n</information>\n'


class Characters:
    """A token is a character."""

    def encode(self, text):
        return [ord(character) for character in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Engine:
    """Says its lines one after another, the last for ever; `pause` is awaited before each."""

    def __init__(self, lines, pause=None, aborted=False):
        self.lines, self.pause, self.aborted, self.contexts = lines, pause, aborted, []

    async def generate(self, context, max_tokens, stop):
        assert {"</search>", "</answer>"} <= set(stop)
        if self.pause:
            await self.pause()
        line = self.lines[min(len(self.contexts), len(self.lines) - 1)]
        self.contexts.append("".join(map(chr, context)))
        ids = [ord(character) for character in line][:max_tokens]
        return Generation(ids, [-1.0] * len(ids), self.aborted)


class Searcher:
    """Finds the same for every query; `pause` is awaited before each search."""

    def __init__(self, result=(FOUND,), pause=None):
        self.result, self.pause, self.calls = result, pause, []

    async def search(self, queries):
        self.calls.append(list(queries))
        if self.pause:
            await self.pause()
        return [self.result for _ in queries]


def make_episode(protocol, engine, searcher=None, *, tools=(), failures=None, observer=None, **budget):
    """An episode whose tokens are characters, with limits that a short one does not reach. `engine`: or its
    lines; `tools`: beside the search."""
    engine = Engine(engine) if isinstance(engine, list) else engine
    budget = Budget(**{"max_query_observation_tokens": 4000, "max_response_tokens": 10_000, **budget})
    tools = {**search_tools(searcher or Searcher()), **{tool.name: tool for tool in tools}}
    return Episode(protocol, budget, engine, tools, Characters(), failures, observer)


def observed_text(episode):
    """What the environment has put into the context."""
    return "".join(chr(i) for span in episode.ledger.spans() if not span.generated for i in span.ids)


def untimed(record):
    record.seconds = 0.0
    for turn in record.turns:
        turn.generate_s = turn.tool_s = 0.0
        for call in turn.calls:
            call.seconds, call.cached = 0.0, False
    return record.to_dict()
