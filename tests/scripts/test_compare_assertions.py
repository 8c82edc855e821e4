"""Assertions of two revisions are equal up to renames, and whatever is lost or changed is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
from compare_assertions import assertions_of, compare, main  # noqa: E402
from renames import CanonicalNames  # noqa: E402

OLD = """
import pytest
from p.tape import Tape


def test_a(tape):
    assert isinstance(tape, Tape), "p.tape"
    with pytest.raises(ValueError, match="p/tape.py: empty"):
        tape.play()


class TestGroup:
    @pytest.mark.parametrize("n", [1, 2])
    def test_b(self, n, mock):
        def inner():
            assert n

        mock.play.assert_called_once_with(n)


def check(run):
    assert run
"""
NEW = OLD.replace("p.tape", "p.io.store").replace("p/tape.py", "p/io/store.py").replace("Tape", "Store")
RENAMES = CanonicalNames({"p.tape": "p.io.store"}, [("Tape", "Store")], {"t/old.py": "t/new.py"})
A, B, CHECK = ("t/old.py", "", "test_a"), ("t/old.py", "TestGroup", "test_b"), ("t/old.py", "", "check")


def changed_by(before: str, after: str) -> list[tuple[str, str, str]]:
    """The functions that are changed where this is written otherwise."""
    assert before in NEW
    return [
        key
        for key, *_ in compare({"t/old.py": OLD}, {"t/new.py": NEW.replace(before, after)}, RENAMES).changed
    ]


def test_every_kind_of_assertion_is_found_in_the_function_that_makes_it():
    assertions = assertions_of(OLD, "t/old.py", CanonicalNames())
    assert {key: several.total() for key, several in assertions.items()} == {A: 2, B: 3, CHECK: 1}


def test_renamed_names_modules_and_files_are_equal_and_without_the_renames_they_are_not():
    result = compare({"t/old.py": OLD}, {"t/new.py": NEW}, RENAMES)
    assert result.same and (result.equal, result.assertions) == (3, 6)
    assert not (result.added or result.moved or result.renamed)
    unnamed = compare({"t/old.py": OLD}, {"t/new.py": NEW}, CanonicalNames(tests=RENAMES.tests))
    assert [key for key, *_ in unnamed.changed] == [A]


@pytest.mark.parametrize(
    ("before", "after", "function"),
    [
        ("assert isinstance", "assert not isinstance", A),
        ("ValueError", "KeyError", A),
        (': empty"', '"', A),
        ("[1, 2]", "[1]", B),
        ("assert n", "print(n)", B),
        ("assert_called_once_with(n)", "assert_called_once()", B),
        ("assert run", "return run", CHECK),
    ],
)
def test_a_change_of_any_assertion_is_named(before, after, function):
    if function == CHECK:  # a function that asserts nothing is no longer there for us
        after_ = {"t/new.py": NEW.replace(before, after)}
        assert compare({"t/old.py": OLD}, after_, RENAMES).lost == [CHECK]
    else:
        assert changed_by(before, after) == [function]


def test_what_is_written_otherwise_and_asserts_the_same_is_no_change():
    assert changed_by("assert isinstance(tape, Store)", "assert (isinstance( tape,Store ))") == []


def test_a_test_in_another_file_is_moved_and_one_with_another_name_is_renamed():
    other = {"t/new.py": NEW.replace("test_a", "test_other"), "t/more.py": ""}
    result = compare({"t/old.py": OLD}, other, RENAMES)
    assert result.same and result.renamed == [(A, ("t/new.py", "", "test_other"))]
    first, second = NEW.split("class TestGroup")
    split = {"t/new.py": first, "t/more.py": "class TestGroup" + second}
    result = compare({"t/old.py": OLD}, split, RENAMES)
    assert result.same and [new[0] for _, new in result.moved] == ["t/more.py", "t/more.py"]


def test_a_lost_test_is_named_and_an_added_one_is_no_fault():
    result = compare({"t/old.py": OLD}, {"t/new.py": NEW.partition("class TestGroup")[0]}, RENAMES)
    assert result.lost == [B, CHECK] and not result.same
    result = compare({"t/old.py": OLD}, {"t/new.py": NEW + "\n\ndef test_c():\n    assert 1\n"}, RENAMES)
    assert result.same and result.added == [("t/new.py", "", "test_c")]


def test_renames_in_a_chain_are_one_name():
    renames = CanonicalNames(names=[("a", "b"), ("b", "c")])
    before, after = "def test_x():\n    assert a + b\n", "def test_x():\n    assert b + c\n"
    assert compare({"t.py": before}, {"t.py": after}, renames).same
    assert not compare({"t.py": before}, {"t.py": after.replace("c", "d")}, renames).same


def test_of_two_tests_that_became_one_the_second_is_lost():
    renames = CanonicalNames(names=[("test_a", "test_x"), ("test_b", "test_x")])
    before = "def test_a():\n    assert a\n\n\ndef test_b():\n    assert b\n"
    result = compare({"t.py": before}, {"t.py": "def test_x():\n    assert a\n    assert b\n"}, renames)
    assert result.lost == [("t.py", "", "test_b")] and len(result.changed) == 1


def test_a_module_is_the_same_by_whatever_name_a_file_imports_it():
    before = "from p import tape\n\n\ndef test_x():\n    assert tape.read() == 1\n"
    after = "import p.io.store as kept\n\n\ndef test_x():\n    assert kept.read() == 1\n"
    assert compare({"t.py": before}, {"t.py": after}, RENAMES).same
    assert not compare({"t.py": before}, {"t.py": after.replace("p.io.store", "p.io.other")}, RENAMES).same


def test_names_may_be_a_list_with_their_modules():
    names = [{"module": m, "old": "Tape", "new": new} for m, new in (("p.tape", "Store"), ("p.q", "Strip"))]
    words = {CanonicalNames.read({"names": names}).name(name) for name in ("Tape", "Store", "Strip", "Other")}
    assert len(words) == 2, "a name of two things has two new names"


def test_a_method_may_be_named_with_its_class():
    renames = CanonicalNames.read({"names": {"Seat.taken": "Ticket.is_seated"}})
    before = "def test_x(one):\n    assert one.taken\n"
    assert compare({"t.py": before}, {"t.py": before.replace("taken", "is_seated")}, renames).same


def test_two_revisions_of_a_repository_are_compared_without_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q"], check=True)
    for number, text in enumerate((OLD, NEW, NEW.replace("assert n", "assert n > 0"))):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_it.py").write_text(text)
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", f"{number}"], check=True)
    (tmp_path / "renames.json").write_text(
        json.dumps({"modules": RENAMES.modules, "names": dict(RENAMES.names)})
    )
    assert main(["HEAD~2", "HEAD~1", "--renames", "renames.json"]) == 0
    assert "3 functions with equal assertions (6 assertions" in capsys.readouterr().out
    assert main(["HEAD~2", "HEAD", "--renames", "renames.json"]) == 1
    output = capsys.readouterr().out
    assert (
        "CHANGED: tests/test_it.py::TestGroup::test_b\n    - 1 x assert n\n    + 1 x assert n > 0\n" in output
    )
    with pytest.raises(SystemExit, match="no-such-revision"):
        main(["no-such-revision", "HEAD"])
