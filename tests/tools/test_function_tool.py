"""A tool out of a function: a name, a description and a schema, against which arguments are checked."""

import asyncio

import pytest
from jsonschema.exceptions import SchemaError

from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord
from rag_r1.options.import_path import ImportPathError
from rag_r1.protocols import Document, Failure
from rag_r1.tools import make_tool, shared_tools, tool
from rag_r1.tools.argument_validator import ArgumentValidator
from rag_r1.tools.config import ConfiguredTool
from rag_r1.tools.function_tool import as_tool, named_arguments

NUMBER = {"type": "number"}


@tool("Divides one number by another.", {"a": NUMBER, "b": NUMBER})
async def divide(a, b):
    return f"{a / b:g}"


@tool(
    "Finds passages.",
    {"words": {"type": "array", "items": {"type": "string"}}, "n": NUMBER},
    required=["words"],
)
async def find(words, n=1):
    return [Document(word, f"{word}\ntext") for word in words[: int(n)]]


def make_wiki(options):
    class Wiki:
        async def search(self, queries):
            return [[Document(options["language"], query)] for query in queries]

    return Wiki()


def make_nothing(options):
    return 3


def test_it_has_a_name_a_description_and_a_schema():
    assert (divide.name, divide.description) == ("divide", "Divides one number by another.")
    assert divide.parameters == {
        "type": "object",
        "properties": {"a": NUMBER, "b": NUMBER},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"a": 1, "b": 2}, None),
        ({"a": 1}, "Wrong arguments: 'b' is a required property"),
        ({"a": 1, "b": "2"}, "Wrong arguments at ['b']: '2' is not of type 'number'"),
        ({"a": 1, "b": 2, "c": 3}, "Wrong arguments: Additional properties are not allowed"),
    ],
)
def test_arguments_are_checked_against_the_schema(arguments, fault):
    results = divide.fault(arguments)
    assert results == fault if fault is None else results.startswith(fault)


@pytest.mark.parametrize(
    ("properties", "required", "given", "named"),
    [
        (["url", "part"], ["url"], {"query": "x"}, {"url": "x"}),
        (["url"], [], {"query": "x"}, {"url": "x"}),
        (["url", "part"], [], {"query": "x"}, {"query": "x"}),
        (["query", "url"], ["url"], {"query": "x"}, {"query": "x"}),
        (["url"], ["url"], {"query": "x", "part": 1}, {"query": "x", "part": 1}),
        ([], [], {"query": "x"}, {"query": "x"}),
    ],
)
def test_words_without_a_name_are_for_the_parameter_that_must_be_given(properties, required, given, named):
    schema = {"type": "object", "properties": {name: {} for name in properties}, "required": required}
    assert named_arguments(given, schema) == named


async def test_a_call_in_words_reaches_a_function_with_another_parameter():
    @tool("Greets.", {"name": {"type": "string"}})
    async def greet(name):
        return f"Hello {name}"

    assert greet.fault({"query": "Ada"}) is None and greet.fault({"query": 3})
    assert await greet.call([{"query": "Ada"}]) == [[Document("greet", "Hello Ada", verbatim=True)]]


def test_a_schema_that_is_none_is_refused_when_the_tool_is_made():
    with pytest.raises(SchemaError):
        tool("Wrong.", {"a": {"type": "figure"}})


@pytest.mark.parametrize("parameters", [{"a": NUMBER}, {"type": "object", "properties": {"b": NUMBER}}])
def test_required_names_that_could_not_count_are_refused_when_the_tool_is_made(parameters):
    with pytest.raises(SchemaError, match=r"`required` must name properties.*\['b'\]"):
        tool("Wrong.", parameters, required=["b"])


def test_a_function_that_is_not_async_is_refused_when_the_tool_is_made():
    with pytest.raises(TypeError, match="plain must be an async function to be a tool: use `async def`"):

        @tool("Wrong.", {"a": NUMBER})
        def plain(a):
            return str(a)


async def test_calls_run_side_by_side_and_one_that_raises_costs_itself_alone():
    good, bad = await divide.call([{"a": 1, "b": 2}, {"a": 1, "b": 0}])
    assert good == [Document("divide", "0.5", verbatim=True)]
    assert isinstance(bad, Failure) and "ZeroDivisionError" in bad.detail and "Zero" not in bad.reason
    assert await find.call([{"words": ["x", "y"], "n": 2}]) == [
        [Document("x", "x\ntext"), Document("y", "y\ntext")]
    ]


def test_a_tool_is_named_by_its_import_path():
    assert make_tool("ratio", f"{__name__}:divide").function is divide.function
    wiki = make_tool("wiki", {"tool": f"{__name__}:make_wiki", "language": "fr"})
    assert wiki.name == "wiki" and wiki.fault({"query": 3}) and not wiki.fault({"query": "x"})
    assert asyncio.run(wiki.call([{"query": "x"}])) == [[Document("fr", "x")]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("calculators", r"rag_r1.tools.x.tool must be one of retrieval, .* or an import path"),
        ({"language": "fr"}, r"rag_r1.tools.x.tool must be given: one of .* or an import path"),
        (
            {"tool": f"{__name__}:divide", "a": 1},
            r"rag_r1.tools.x: .* is a tool and takes no options; found a",
        ),
        (f"{__name__}:make_nothing", r"rag_r1.tools.x: .* gives neither a tool nor a searcher, but int"),
    ],
)
def test_a_wrong_entry_is_named(entry, message):
    with pytest.raises(ValueError, match=message):
        make_tool("x", entry)


def test_a_module_that_is_not_there_is_named_with_a_remedy():
    with pytest.raises(ImportPathError, match="rag_r1.tools.x"):
        make_tool("x", "no_such_module:f")


def test_the_name_of_the_search_engine_is_taken():
    with pytest.raises(ValueError, match="rag_r1.tools.search: the name is used by the search engine"):
        make_tool("search", f"{__name__}:divide")


async def test_tools_are_shared_by_configuration_and_made_by_their_first_call():
    entry = {"wiki": {"tool": f"{__name__}:make_wiki", "language": "fr"}}
    item, same, other = (shared_tools({"topk": n}, entry) for n in (3, 3, 4))
    assert item is same and item is not other and list(item) == ["search", "wiki"]
    assert await item["wiki"].call([{"query": "x"}]) == [[Document("fr", "x")]]
    late = shared_tools({}, {"late": "no_such_module:f"})["late"]
    with pytest.raises(ImportPathError):
        late.fault({})


HOSTILE = "a" * 40 + "!"


@tool("Says a word.", {"word": {"type": "string", "pattern": "^(a+)+$"}})
async def word(word):
    return word


@tool("Counts.", {"things": {"type": "array", "uniqueItems": True}})
async def count(things):
    return str(len(things))


async def checked(built, arguments):
    """What the guard's call of a tool shows, and whether the event loop went on meanwhile."""
    turned = asyncio.ensure_future(asyncio.sleep(0))
    call = CallRecord("t", arguments)
    guard = ToolExecutor({"t": built}, FailurePolicy(retries=0), lambda attempt: asyncio.sleep(0))
    ((document,),) = await guard.call([call])
    assert turned.done()
    return call.status, document.contents


@pytest.mark.slow
async def test_a_regular_expression_is_checked_and_one_that_takes_for_ever_costs_its_own_call():
    assert await checked(word, {"word": "aaa"}) == ("ok", "aaa")
    assert (await checked(word, {"word": "b"}))[1].startswith(
        "Wrong arguments at ['word']: 'b' does not match"
    )
    late = ("refused", "Wrong arguments: they take too long to check.")
    assert await checked(word, {"word": HOSTILE}) == late
    assert await checked(ConfiguredTool("t", word, parameters=word.parameters), {"word": HOSTILE}) == late
    assert await checked(word, {"word": "aaa"}) == ("ok", "aaa")


@pytest.mark.slow
async def test_things_that_must_differ_are_compared_within_limits():
    assert await checked(count, {"things": [1, 2]}) == ("ok", "2")
    assert "non-unique" in (await checked(count, {"things": [1, 1]}))[1]
    many = [{"a": i} for i in range(20_000)]
    assert (await checked(count, {"things": many}))[0] == "refused"


@pytest.mark.parametrize(
    ("schema", "arguments", "is_quick"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": "x"}, True),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"enum": [1, 2]}]}}}, {"a": 1}, True),
        ({"properties": {"pattern": {"type": "string"}}}, {"pattern": "x"}, True),
        ({"properties": {"a": {"pattern": "x"}}}, {"a": "x"}, False),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, {"a": []}, False),
        ({"$ref": "#"}, {}, False),
        ({"anyOf": [{"anyOf": [{"propertyNames": {"pattern": "x"}}]}]}, {}, False),
        ({"properties": {f"p{i}": {} for i in range(400)}}, {}, False),
        ({"properties": {"a": {"enum": list(range(400))}}}, {}, False),
        ({"type": "object"}, {"a": [0] * 2000}, False),
    ],
)
def test_only_what_is_small_and_plain_is_checked_on_the_event_loop(schema, arguments, is_quick):
    check = ArgumentValidator(schema)
    assert check.is_quick(arguments) is is_quick


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf")], ids=["long", "nan", "inf"])
@pytest.mark.parametrize("more", [{}, {"uniqueItems": True}])  # checked here, and in a worker
def test_a_number_that_cannot_be_divided_is_the_policys_fault(number, more):
    validator = ArgumentValidator({"type": "object", "properties": {"x": {"multipleOf": 0.5, **more}}})
    assert validator.is_quick({"x": number}) == (not more)
    assert validator.fault({"x": number}) == "Wrong arguments: a number is too large, or is not finite."


def test_a_schema_that_is_too_large_is_refused_when_the_tool_is_made():
    with pytest.raises(SchemaError, match="more than 256 KiB"):
        tool("Large.", {f"p{i}": {"type": "string"} for i in range(20_000)})


@pytest.mark.parametrize("error", [OSError(11, "no more processes"), RuntimeError("shutting down")])
def test_arguments_of_a_server_pass_if_nothing_can_check_them(monkeypatch, error):
    def call(*_):
        raise error

    monkeypatch.setattr("rag_r1.tools.argument_validator._workers.call", call)
    schema = {"type": "object", "properties": {"x": {"$ref": "#"}}}
    assert ArgumentValidator(schema, foreign=True).fault({"x": 1}) is None
    with pytest.raises(type(error)):
        ArgumentValidator(schema).fault({"x": 1})


def test_a_class_is_neither_a_tool_nor_a_searcher():
    class Searcher:
        async def search(self, queries): ...

    assert as_tool("search", Searcher) is None and as_tool("search", Searcher()) is not None
