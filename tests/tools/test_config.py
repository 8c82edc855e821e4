"""The entries under `rag_r1.tools`: shipped tools, async functions, and what an entry says about its tool."""

import re
from dataclasses import fields
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rag_r1.options.declare import OptionsError
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import CachedDocuments, Document, Failure
from rag_r1.tools import close_tools, make_tool, tool
from rag_r1.tools.config import SHIPPED
from tests.fakes.json_server import JsonStub

ASKED = []
TOWN = {"town": {"type": "string", "minLength": 2}}


async def weather(town):
    """A plain async function."""
    ASKED.append(town)
    if town == "Nowhere":
        raise ConnectionError("away")
    return f"rain in {town}"


@tool("Counts.", {}, limits=ToolLimits(max_calls=2))
async def counter():
    return "1"


def entry(**more):
    return {"tool": f"{__name__}:weather", "description": "Weather.", "parameters": TOWN, **more}


async def test_an_entry_makes_a_tool_of_any_async_function():
    built = make_tool("weather", entry(limits={"retries": 2}))
    assert (built.name, built.description, built.limits.retries) == ("weather", "Weather.", 2)
    assert built.fault({"town": "U"}).startswith("Wrong arguments at ['town']")
    assert await built.call([{"town": "Ulm"}]) == [[Document("weather", "rain in Ulm", verbatim=True)]]


async def test_the_policy_is_told_of_a_tool_by_the_name_of_its_entry():
    built = make_tool("open", {"tool": "page", "url": "http://127.0.0.1:9"})
    (failure,) = await built.call([{"url": "x"}])
    await built.close()
    assert failure.reason.startswith("The tool open did not answer.")
    assert make_tool("c", f"{__name__}:counter").name == "c" and counter.name == "counter"


def test_what_an_entry_declares_takes_the_place_of_the_tools_own_words():
    built = make_tool(
        "c", {"tool": "calculator", "description": "Sums.", "parameters": {"query": {"minLength": 3}}}
    )
    assert built.description == "Sums."
    assert built.fault({"query": "1"}) and not built.fault({"query": "1+1"})
    assert make_tool("c", f"{__name__}:counter").limits.max_calls == 2


async def test_a_cache_answers_the_same_call_once_and_keeps_no_failure():
    built = make_tool("weather", entry(limits={"cache_size": 8}))
    ASKED.clear()
    item, other, again = [
        await built.call([{"town": town} for town in towns])
        for towns in (["Bonn", "Nowhere"], ["Kiel", "Bonn"], ["Nowhere"])
    ]
    assert ASKED == ["Bonn", "Nowhere", "Kiel", "Nowhere"]
    assert list(other[1]) == list(item[0]) and isinstance(again[0], Failure)
    assert [isinstance(answer, CachedDocuments) for answer in (item[0], *other)] == [False, False, True]


def test_a_web_engine_beside_an_index_is_a_retrieval_tool_of_its_own():
    web = make_tool("web", {"tool": "retrieval", "url": "http://127.0.0.1:8000/indexes/web"})
    assert web.config.endpoint == "http://127.0.0.1:8000/indexes/web/retrieve"
    assert web.fault({"question": "x"}) and not web.fault({"query": "x"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (entry(parameters=None), "is a plain async function: give its description and parameters"),
        (entry(parameters={"town": {"type": "place"}}), r"rag_r1.tools.x.parameters must be a JSON schema"),
        (entry(parameters={date(2026, 1, 1): {}}), "x.parameters must be a JSON schema: keys must be"),
        (entry(description=3), "rag_r1.tools.x.description must be a text or null, not 3"),
        (entry(required=[["town"]]), "rag_r1.tools.x.required must be a list of names of parameters"),
        (entry(limits={"retry": 1}), r"unknown key rag_r1.tools.x.limits.retry: .* did you mean retries\?"),
        (
            entry(limits={"max_calls": 0}),
            "rag_r1.tools.x.limits.max_calls must be a whole number of at least 1",
        ),
        (entry(limits=3), "rag_r1.tools.x.limits must be a mapping of limits, not 3"),
        (entry(url="x"), "takes no options; found url"),
        ({"tool": "calculator", "precision": 3}, "unknown key rag_r1.tools.x.precision"),
        ({"tool": "page", "part_chars": 20_000}, "rag_r1.tools.x.part_chars must be .* from 1 to 19,900"),
        ({"tool": "documents", "folder": "no/such"}, "rag_r1.tools.x.folder: there is no folder 'no/such'"),
        ({"tool": "documents"}, "rag_r1.tools.x.folder must be given: a folder with documents"),
        ({"tool": "retrieval", "topk": 0}, "rag_r1.tools.x.topk must be a whole number of at least 1"),
        ({"tool": "elasticsearch", "index": "w", "url": "http://a:b@c"}, "without user, password"),
        (
            {"tool": "sparql", "url": "http://x", "template": "SELECT"},
            "rag_r1.tools.x.template must be a query",
        ),
        ({"tool": "graph", "file": "x.jsonld"}, "rag_r1.tools.x.file must end in one of .ttl"),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(given, message):
    with pytest.raises(ValueError, match=message):
        make_tool("x", {key: value for key, value in given.items() if value is not None})


def test_all_that_is_wrong_with_an_entry_is_told_together():
    with pytest.raises(OptionsError) as refused:
        make_tool("x", {"tool": "page", "part_chars": 0, "limits": {"retries": -1}, "description": 3})
    assert sorted(fault.key.removeprefix("rag_r1.tools.x.") for fault in refused.value.faults) == [
        "description",
        "limits.retries",
        "part_chars",
    ]


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "tools.md").read_text("utf-8")
#: The guide's example of every shipped tool.
EXAMPLES = next(
    tools
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    if len(tools := yaml.safe_load(block).get("rag_r1", {}).get("tools", {})) > 5
)
#: Options whose value in the guide is an example.
OWN = {"tool", "folder", "file", "url", "index", "command", "call"}


def options_of(name):
    """The class that declares a shipped tool's options."""
    module = import_module(SHIPPED[name].partition(":")[0])
    return next(cls for cls in vars(module).values() if getattr(cls, "options_key", "").startswith("rag_r1."))


def test_the_guide_has_an_example_of_every_shipped_tool():
    named = {entry if isinstance(entry, str) else entry["tool"] for entry in EXAMPLES.values()}
    assert named == set(SHIPPED)


@pytest.mark.parametrize("entry", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_the_guide_shows_all_options_with_their_defaults(entry):
    declared = {field.name: field.default for field in fields(options_of(entry["tool"]))}
    other_places = {"mcp": {"url", "token_env"}, "retrieval": declared.keys() - {"url", "topk"}}
    assert entry.keys() == {"tool", *declared} - set(other_places.get(entry["tool"], ()))
    for name in entry.keys() - OWN:
        text = tuple(entry[name]) if isinstance(entry[name], list) else entry[name]
        assert text == declared[name], name


@pytest.mark.parametrize(
    "more", [{"parameters": None}, {"parameters": {"type": "object"}}, {"required": ["twon"]}]
)
def test_required_names_that_could_not_count_are_refused(more):
    with pytest.raises(ValueError, match=r"rag_r1\.tools\.w\.parameters .*: `required` must name properties"):
        make_tool("w", entry(**{"required": ["town"], **more}))


@pytest.mark.parametrize("given", [{"parameters": {"town": {"$ref": "REMOTE"}}}, {}])
async def test_what_a_schema_refers_to_is_not_fetched(given):
    with JsonStub(lambda request: {"type": "integer"}) as server:
        remote = {"town": {"$ref": f"{server.url}/schema"}}
        built = make_tool("w", entry(parameters=remote)) if given else tool("Weather.", remote)(weather)
        with pytest.raises(Exception, match="Unresolvable"):
            built.fault({"town": "Ulm"})
        assert not server.asked


async def test_a_tool_that_cannot_be_closed_keeps_no_other_open():
    closed = []

    class Closing:
        def __init__(self, error):
            self.error = error

        async def close(self):
            closed.append(self.error)
            if self.error:
                raise OSError("busy")

    await close_tools({"a": Closing(True), "b": Closing(False)})
    assert closed == [True, False]


def test_a_password_in_an_address_is_refused_and_not_shown():
    entry = {"tool": "sparql", "url": "http://me:SECRET@kg.org/sparql"}
    message = r"rag_r1\.tools\.kg\.url must be an http"
    with pytest.raises(OptionsError, match=message) as refused:
        make_tool("kg", entry)
    assert "SECRET" not in str(refused.value)
