"""scripts/mutants.py on a small package: what is drawn, how it is found again, what its tests say of it."""

from __future__ import annotations

import ast
import json
import subprocess

import mutants
import pytest
from mutation.drawing import digest_of, draw, sources_of
from mutation.finding import Renames
from mutation.runs import SessionError, copied, pytest_in
from mutation.sites import sites

CODE = '''\
"""Numbers: 7 of them."""

STEP = 3


def clamp(value: int, low: int = 0) -> int:
    """At least `low`, which is often 8."""
    if value < low:
        return low
    return value


class Counter:
    def __init__(self):
        self.total = 0

    def count(self):
        self.total += STEP
        raise ValueError(f"{self.total + 1} is too much")
'''
TESTS = """\
from toy.numbers import clamp


def test_below():
    assert clamp(-1) == 0


def test_above():
    assert clamp(5) == 5
"""
BELOW, ABOVE = "tests/test_numbers.py::test_below", "tests/test_numbers.py::test_above"
#: As in pyproject.toml: plugins whose imports every start would pay for.
PYTEST = "[pytest]\naddopts = -p no:schemathesis -p no:hydra_pytest\n"
PACKAGES = ["toy"]
#: In the function with tests: each place and what its tests must say of it.
VERDICTS = {
    ("comparison", "if (value <= low):"): "survived",
    ("condition", "if (not value < low):"): "killed",
    ("number", "def clamp(value: int, low: int = 1) -> int:"): "killed",
    ("return", "return None"): "killed",
}


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "toy/__init__.py": "",
        "toy/numbers.py": CODE,
        "tests/test_numbers.py": TESTS,
        "pytest.ini": PYTEST,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def coverage(project, tmp_path_factory):
    """What `cover` writes: `clamp` by its lines, and nothing of `Counter`."""
    path = tmp_path_factory.mktemp("coverage") / "coverage.json"
    written = {
        "digest": digest_of(sources_of(project, PACKAGES)),
        "tests": [ABOVE, BELOW],
        "seconds": [0.2, 0.1],
        "groups": [[0, 1], [1], [0]],
        "lines": {"toy/numbers.py": {"8": 0, "9": 1, "10": 2}},
    }
    path.write_text(json.dumps(written))
    return path


@pytest.fixture(scope="module")
def drawn(project, coverage):
    """Every place of the package."""
    return draw(project, PACKAGES, coverage, seed=3, count=1000, tests=40)


def of_clamp(drawn):
    return {**drawn, "mutants": [mutant for mutant in drawn["mutants"] if mutant["name"] == "clamp"]}


@pytest.mark.parametrize(
    ("source", "kind", "mutated"),
    [
        ("a < b <= c", "comparison", ["(a <= b <= c)", "(a < b < c)"]),
        ("x = a is not None", "comparison", ["x = (a is None)"]),
        ("a and b or c", "boolean", ["((a and b) and c)", "(a or b) or c"]),
        ("a // b", "arithmetic", ["(a / b)"]),
        ("a += 2", "arithmetic", ["a -= 2"]),
        ("'é' + f(0.5)", "number", ["'é' + f(1.5)"]),
        ("f(on=True)", "truth value", ["f(on=False)"]),
        ("def f():\n    return (\n        1\n    )", "return", ["def f():\n    return None"]),
        ("not a", "not", ["(a)"]),
        ("if a:\n    b", "condition", ["if (not a):\n    b"]),
        ("b if a < 1 else c", "condition", ["b if (not a < 1) else c"]),
        ("def f(a='word', *, b=(), c=None): ...", "default", [
            "def f(a=None, *, b=(), c=None): ...", "def f(a='word', *, b=None, c=None): ...",
        ]),
        ("a[b:c]", "slice", ["a[:c]", "a[b:]"]),
        ("match a:\n    case 1 if b == c: pass", "comparison", ["match a:\n    case 1 if (b != c): pass"]),
    ],
)  # fmt: skip
def test_each_kind_of_place_is_changed_by_itself(source, kind, mutated):
    assert [site.mutated(source) for site in sites(source) if site.kind == kind] == mutated


@pytest.mark.parametrize(
    "source",
    [
        '"""One of 3: a < b."""',
        "'a' + 'b'",
        "raise ValueError(f'{a + 1} is not {b if c else d}')",
        "a: Literal[1, 2] | None = None",
        "def f(a: Literal[1]) -> Literal[True]: ...",
        "@cache(maxsize=1)\ndef f(): ...",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    f(1)",
        "return_none = None",
    ],
)
def test_texts_annotations_and_decorators_are_left_alone(source):
    assert sites(source) == []


def test_mutants_of_a_real_module_parse_and_differ():
    source = (mutants.ROOT / "scripts" / "mutants.py").read_text(encoding="utf-8")
    before, mutated = ast.dump(ast.parse(source)), [site.mutated(source) for site in sites(source)]
    assert len(mutated) > 50
    assert all(ast.dump(ast.parse(text)) != before for text in mutated)


def test_a_seed_draws_the_same_mutants_and_another_seed_others(project, coverage, drawn):
    def sample(seed):
        return draw(project, PACKAGES, coverage, seed=seed, count=4, tests=40)

    assert sample(3) == sample(3)
    assert sample(3)["mutants"] == drawn["mutants"][:4] and sample(3)["seed"] == 3
    assert sample(3)["mutants"] != sample(4)["mutants"]


def test_tests_are_those_of_the_line_the_fastest_first(project, coverage, drawn):
    tests = {mutant["after"]: mutant["tests"] for mutant in drawn["mutants"] if mutant["name"] == "clamp"}
    assert tests["if (value <= low):"] == [BELOW, ABOVE]
    assert tests["def clamp(value: int, low: int = 1) -> int:"] == [BELOW, ABOVE]
    fewer = draw(project, PACKAGES, coverage, seed=3, count=1000, tests=1)["mutants"]
    assert {tuple(mutant["tests"]) for mutant in fewer if mutant["line"] == 8} == {(BELOW,)}
    assert {tuple(mutant["tests"]) for mutant in drawn["mutants"] if "Counter" in mutant["name"]} == {()}


def test_a_constant_gets_the_tests_of_the_functions_that_name_it(project, coverage, tmp_path):
    covered = json.loads(coverage.read_text())
    covered["lines"]["toy/numbers.py"]["18"] = 2
    (tmp_path / "coverage.json").write_text(json.dumps(covered))
    sample = draw(project, PACKAGES, tmp_path / "coverage.json", seed=3, count=1000, tests=40)["mutants"]
    assert [mutant["tests"] for mutant in sample if mutant["before"] == "STEP = 3"] == [[ABOVE]]


def test_lines_of_another_state_of_the_sources_are_refused(project, coverage, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "numbers.py").write_text(CODE + "\n# a line more\n")
    with pytest.raises(ValueError, match="another state of the sources"):
        draw(tmp_path, PACKAGES, coverage, seed=3, count=1, tests=40)


#: The package after a reorganisation: `clamp` in another module and class, reformatted, with other names.
MOVED = '''\
"""Limits."""

ONE = 1
PACE = 3


class Limits:
    @staticmethod
    def at_least(number: int, least: int = 0) -> int:
        """As before."""
        if (
            number < least
        ):
            return least
        return number
'''
RENAMES = {
    "modules": {"toy": "game"},
    "names": {"toy.numbers.clamp": "game.limits.Limits.at_least", "toy.numbers.STEP": "game.limits.PACE"},
    "tests": {
        "tests/test_numbers.py": "tests/limits/test_limits.py",
        BELOW: "tests/limits/test_limits.py::test_low",
    },
}


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moved")
    tests = TESTS.replace("from toy.numbers import clamp", "from game.limits import Limits")
    tests = tests.replace("clamp(", "Limits.at_least(").replace("test_below", "test_low")
    for name, text in {
        "game/__init__.py": "",
        "game/limits.py": MOVED,
        "tests/limits/test_limits.py": tests,
        "pytest.ini": PYTEST,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_a_place_is_found_again_where_it_was_moved_and_renamed(moved, drawn):
    renames = Renames(**RENAMES)
    (step,) = [mutant for mutant in drawn["mutants"] if mutant["before"] == "STEP = 3"]
    assert "PACE = 4" in mutants.found_again(moved, step, renames).mutated
    places = [mutants.found_again(moved, mutant, renames) for mutant in of_clamp(drawn)["mutants"]]
    assert {mutant.path for mutant in places} == {"game/limits.py"}
    assert [(mutant.site.kind, mutant.site.ordinal) for mutant in places] == [
        (mutant["kind"], mutant["ordinal"]) for mutant in of_clamp(drawn)["mutants"]
    ]
    assert {test for mutant in places for test in mutant.tests} == {
        "tests/limits/test_limits.py::test_low",
        "tests/limits/test_limits.py::test_above",
    }


def test_what_is_gone_or_another_statement_is_not_found(project, moved, drawn):
    (step,) = [mutant for mutant in drawn["mutants"] if mutant["before"] == "STEP = 3"]
    assert mutants.found_again(moved, step, Renames()) == "there is no module toy.numbers"
    counter = next(mutant for mutant in drawn["mutants"] if mutant["name"] == "Counter.count")
    assert "no such place in Counter.count" in mutants.found_again(
        moved, counter, Renames(modules={"toy.numbers": "game.limits"})
    )


@pytest.mark.parametrize(
    ("test", "new"),
    [
        ("tests/a/test_x.py::test_f[a::b/c]", "tests/b/test_x.py::test_f[a::b/c]"),
        ("tests/a/test_y.py::test_f[1]", "tests/z.py::test_f[1]"),
        ("tests/a/test_y.py::test_g[1]", "tests/z.py::test_h[1]"),
        ("tests/a/test_y.py::test_f[old]", "tests/z.py::test_f[new]"),
        ("tests/aa/test_x.py::test_f", "tests/aa/test_x.py::test_f"),
    ],
)
def test_renames_of_tests_name_folders_files_functions_or_whole_ids(test, new):
    renames = Renames(
        tests={
            "tests/a": "tests/b",
            "tests/a/test_y.py": "tests/z.py",
            "tests/a/test_y.py::test_g": "tests/z.py::test_h",
            "tests/a/test_y.py::test_f[old]": "tests/z.py::test_f[new]",
        }
    )
    assert renames.test(test) == new


def write_verdicts(path, **verdicts):
    about = {"place": "a.py:1", "kind": "number", "before": "1", "after": "2"}
    lines = [json.dumps({"id": number, "verdict": verdict, **about}) for number, verdict in verdicts.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_comparing_fails_where_a_mutant_is_not_killed_any_more(tmp_path, capsys):
    before = write_verdicts(tmp_path / "before", m1="killed", m2="survived", m3="killed", m4="not covered")
    same = write_verdicts(tmp_path / "same", m1="timed out", m2="killed", m3="killed", m4="not covered")
    assert mutants.main(["compare", before, same]) == 0
    printed = capsys.readouterr().out
    assert (
        "killed -> timed out  m1" in printed and "survived -> killed  m2" in printed and "m3" not in printed
    )
    worse = write_verdicts(tmp_path / "worse", m1="killed", m2="survived", m3="survived", m4="not covered")
    assert mutants.main(["compare", before, worse]) == 1
    assert "error: killed -> survived  m3  a.py:1" in capsys.readouterr().out
    assert (
        mutants.main(["compare", before, write_verdicts(tmp_path / "less", m1="killed", m2="survived")]) == 1
    )
    assert "error: killed -> no verdict  m3" in capsys.readouterr().out


def test_half_a_line_of_a_killed_run_is_left_out_and_cut_off_only_by_another_run(tmp_path):
    path = tmp_path / "verdicts"
    write_verdicts(path, m1="killed")
    whole = path.read_bytes()
    path.write_bytes(cut := whole + b'{"id": "m2", "ver\xc3')
    assert mutants.main(["compare", str(path), str(path)]) == 0
    assert path.read_bytes() == cut
    assert list(mutants._resume(path)) == ["m1"]
    assert path.read_bytes() == whole


def test_comparing_with_a_file_that_does_not_exist_fails(tmp_path):
    after = write_verdicts(tmp_path / "after", m1="killed")
    with pytest.raises(FileNotFoundError):
        mutants.main(["compare", str(tmp_path / "befroe"), after])


@pytest.mark.slow
def test_tests_decide_before_and_after_a_reorganisation(project, moved, drawn, tmp_path, capsys):
    (tmp_path / "mutants.json").write_text(json.dumps(of_clamp(drawn)))
    (tmp_path / "renames.json").write_text(json.dumps(RENAMES))
    checkouts = files_of(project), files_of(moved)
    words = ["run", "--mutants", str(tmp_path / "mutants.json")]
    before, after = tmp_path / "before", tmp_path / "after"
    assert mutants.main([*words, "--tree", str(project), "--out", str(before)]) == 0
    verdicts = mutants.read_verdicts(before)
    assert {(v["kind"], v["after"]): v["verdict"] for v in verdicts.values()} == VERDICTS
    assert {v.get("by") for v in verdicts.values() if v["kind"] == "number"} == {BELOW}

    renames = ["--renames", str(tmp_path / "renames.json"), "--processes", "2"]
    assert mutants.main([*words, *renames, "--tree", str(moved), "--out", str(after)]) == 0
    assert {key: v["verdict"] for key, v in mutants.read_verdicts(after).items()} == {
        key: v["verdict"] for key, v in verdicts.items()
    }
    assert mutants.main(["compare", str(before), str(after)]) == 0
    assert (files_of(project), files_of(moved)) == checkouts


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_names_what_it_cannot_run(project, drawn, tmp_path, capsys):
    first, second, *_ = drawn["mutants"]
    second = {**second, "tests": ["tests/test_numbers.py::test_gone"]}
    (tmp_path / "mutants.json").write_text(json.dumps({**drawn, "mutants": [first, second]}))
    write_verdicts(tmp_path / "verdicts", **{first["id"]: "survived"})
    words = ["--mutants", str(tmp_path / "mutants.json"), "--out", str(tmp_path / "verdicts")]
    assert mutants.main(["run", "--tree", str(project), *words]) == 1
    assert "no test tests/test_numbers.py::test_gone" in capsys.readouterr().err
    assert {key: v["verdict"] for key, v in mutants.read_verdicts(tmp_path / "verdicts").items()} == {
        first["id"]: "survived"
    }


@pytest.mark.slow
def test_a_killer_that_fails_without_a_mutant_is_named(project, drawn, tmp_path, capsys):
    (tmp_path / "mutants.json").write_text(json.dumps({**drawn, "mutants": []}))
    (project / "tests" / "test_flaky.py").write_text("def test_never():\n    assert False\n")
    killed = {"id": "m1", "verdict": "killed", "by": "tests/test_flaky.py::test_never"}
    (tmp_path / "verdicts").write_text(json.dumps(killed) + "\n")
    words = ["--mutants", str(tmp_path / "mutants.json"), "--out", str(tmp_path / "verdicts")]
    try:
        assert mutants.main(["run", "--tree", str(project), *words]) == 1
    finally:
        (project / "tests" / "test_flaky.py").unlink()
    assert "tests/test_flaky.py::test_never fails without a mutant" in capsys.readouterr().err


@pytest.mark.slow
def test_a_session_ends_after_its_limit_and_with_modules_of_another_tree_fails(project, monkeypatch):
    with copied(project, PACKAGES) as copy:
        (copy / "tests" / "test_long.py").write_text("import time\n\ndef test_f():\n    time.sleep(600)\n")
        session = pytest_in(copy, PACKAGES, ["tests/test_long.py"], limit=0.2)
        assert session.status is None and session.seconds == 0.2
        elsewhere = f"import sys\n\nsys.path.insert(0, {str(project)!r})\n\n{TESTS}"
        (copy / "tests" / "test_elsewhere.py").write_text(elsewhere)
        with pytest.raises(SessionError, match="toy/numbers.py"):
            pytest_in(copy, PACKAGES, ["tests/test_elsewhere.py"])


@pytest.mark.slow
def test_tests_that_take_longer_by_themselves_are_no_time_out(project, drawn, tmp_path, monkeypatch, capsys):
    mutant = next(mutant for mutant in drawn["mutants"] if "value <= low" in mutant["after"])
    mutant = {**mutant, "seconds": 0.01, "tests": ["tests/test_later.py::test_f"]}
    (tmp_path / "mutants.json").write_text(json.dumps({**drawn, "mutants": [mutant]}))
    monkeypatch.setattr(mutants, "MARGIN", 0.5)
    (project / "tests" / "test_later.py").write_text("import time\n\ndef test_f():\n    time.sleep(1.5)\n")
    words = ["--mutants", str(tmp_path / "mutants.json"), "--out", str(tmp_path / "verdicts")]
    try:
        assert mutants.main(["run", "--tree", str(project), *words]) == 0
    finally:
        (project / "tests" / "test_later.py").unlink()
    (verdict,) = mutants.read_verdicts(tmp_path / "verdicts").values()
    assert verdict["verdict"] == "survived"


@pytest.mark.slow
def test_lines_of_each_test_are_covered(project, coverage, tmp_path):
    pytest.importorskip("coverage", reason="cover needs it; it is not among the packages of the tests")
    out = tmp_path / "coverage.json"
    assert mutants.main(["cover", "--tree", str(project), "--packages", "toy", "--out", str(out)]) == 0
    covered, expected = json.loads(out.read_text()), json.loads(coverage.read_text())

    def lines(written):
        groups = [[written["tests"][test] for test in group] for group in written["groups"]]
        return {line: groups[group] for line, group in written["lines"]["toy/numbers.py"].items()}

    assert lines(covered) == lines(expected)
    assert covered["digest"] == expected["digest"] and covered["failed"] == []
