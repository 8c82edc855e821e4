"""What we use of veRL is as it was pinned; a change is told by name, with the lines that are new."""

from __future__ import annotations

from zipfile import ZipFile

import pytest

from tests.contract.table import Table
from tests.contract.update import diff
from tests.contract.verl_source import Sources, in_wheel, installed

BUFFER = "verl.trainer.ppo.v1.replay_buffer"


def test_every_name_that_we_use_is_as_it_was_pinned(table, sources):
    if report := table.report(sources):
        pytest.fail(report, pytrace=False)


def test_the_table_has_every_contact_with_verl_and_no_other(table, scan):
    assert scan.faults == []
    scanned = {
        key: {kind: sorted(places) for kind, places in kinds.items()} for key, kinds in scan.contacts.items()
    }
    pinned = {
        key: {kind: sorted(places) for kind, places in row.uses.items()} for key, row in table.rows.items()
    }
    differing = {key for key in scanned.keys() | pinned.keys() if scanned.get(key) != pinned.get(key)}
    lines = [f"{key}: pinned {pinned.get(key)}, found {scanned.get(key)}" for key in sorted(differing)]
    assert not lines, "\n".join([*lines, "look at each, then run: python -m tests.contract.update"])


@pytest.fixture
def report(table, sources):
    """What is said of a copy of veRL's replay buffer in which one text has become another."""

    def said(old: str, new: str) -> str:
        text = sources.module(BUFFER).text
        assert text.count(old) == 1
        return table.of(BUFFER).report(installed({BUFFER: text.replace(old, new)}))

    return said


def test_another_signature_is_reported_with_both(report):
    said = report(
        "def _clear_groups(self, partition_id: str, uids: set[str]) -> None:",
        "def _clear_groups(self, partition_id: str, uids: set[str], reason: str = '') -> None:",
    )
    assert (
        f"{BUFFER}: ReplayBuffer._clear_groups has changed (overridden in rag_r1/plugin/group_filter.py)"
        in said
    )
    assert "its signature was (self, partition_id: str, uids: set[str]) -> None\n" in said
    assert "is (self, partition_id: str, uids: set[str], reason: str='') -> None\n" in said
    assert said.count("has changed") == 1
    assert "pip download verl==0.9.1" in said and "tests.contract.update --diff" in said


def test_another_body_is_reported_with_the_new_line_and_its_number(report):
    said = report("        time.sleep(self.poll_interval)\n", "        time.sleep(2 * self.poll_interval)\n")
    assert (
        f"{BUFFER}: ReplayBuffer._wait_for_next_poll has changed" in said and said.count("has changed") == 1
    )
    assert "its signature" not in said
    (new,) = [line for line in said.splitlines() if line.startswith("  + ")]
    assert new.endswith("          time.sleep(2 * self.poll_interval)") and new.split()[1].isdigit()
    assert "  -     1  gone\n" in said


def test_a_line_that_is_gone_is_counted_and_what_stood_before_it_is_shown(report):
    said = report("        self._clear_groups(partition_id, evicted_uids)\n", "")
    assert "ReplayBuffer._evict_terminal_groups has changed" in said and "  -     1  gone\n" in said
    assert 'metrics[f"{prefix}/rollout_failure/evicted_samples"] = len(failed_uids)\n  -     1  gone' in said


def test_a_name_that_is_gone_is_reported_with_the_places_of_others_of_that_name(report):
    said = report("    def _clear_groups(", "    def _clear(")
    assert "ReplayBuffer._clear_groups is gone (overridden in rag_r1/plugin/group_filter.py)" in said
    assert "there is one of that name in verl/trainer/ppo/v1/replay_buffer.py" in said
    assert "ReplayBuffer has changed" in said, "the class has a method that it did not have"


def test_an_attribute_that_is_no_longer_set_is_reported(report):
    said = report("self.finished_keys: dict", "self.ended_keys: dict")
    assert "ReplayBuffer.finished_keys is gone (inherited in rag_r1/plugin/group_filter.py)" in said


def test_a_method_of_which_we_know_nothing_belongs_to_its_class(report):
    said = report("return ordered_keys[:batch_size], ", "return ordered_keys[-batch_size:], ")
    assert f"{BUFFER}: ReplayBuffer has changed (imported in rag_r1/plugin/sampler.py)" in said
    assert said.count("has changed") == 1 and "ordered_keys[-batch_size:]" in said


def test_lines_that_are_nested_in_another_way_are_a_change(report):
    said = report(
        "                    partition[key].update(tag)", "                        partition[key].update(tag)"
    )
    assert "ReplayBuffer has changed" in said and "the same lines, nested or broken in another way" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("time.sleep(self.poll_interval)\n", "time.sleep(self.poll_interval)  # s\n        # It waits.\n"),
        ("time.sleep(self.poll_interval)\n", "time.sleep(\n            self.poll_interval,\n        )\n"),
        ('"""Sync the metadata from TransferQueue."""', '"""Another docstring."""'),
    ],
    ids=["comments", "line breaks", "docstring"],
)  # fmt: skip
def test_words_and_line_breaks_are_no_change(report, old, new):
    assert report(old, new) == ""


def test_the_whole_difference_is_shown_from_a_wheel_of_the_pinned_version(table, sources, tmp_path):
    text = sources.module(BUFFER).text
    with ZipFile(tmp_path / "old.whl", "w") as wheel:
        wheel.writestr(f"{BUFFER.replace('.', '/')}.py", text)
    changed = text.replace("time.sleep(self.poll_interval)", "time.sleep(1.0)")
    lines = diff(table.of(BUFFER), in_wheel(tmp_path / "old.whl"), installed({BUFFER: changed})).splitlines()
    assert [line for line in lines if line.startswith(("+", "-"))] == [
        f"--- old/{BUFFER}:ReplayBuffer._wait_for_next_poll",
        f"+++ new/{BUFFER}:ReplayBuffer._wait_for_next_poll",
        "-        time.sleep(self.poll_interval)",
        "+        time.sleep(1.0)",
    ]


def test_a_hash_is_the_same_on_every_python(tmp_path):
    source = '''
@decorated(name="x")
async def made(a: int, /, b=None, *c: str, d: list[int] | None = [1, 2], **e) -> dict[str, tuple[int, ...]]:
    """A docstring."""
    match a:
        case {"k": [1, *rest]} if (n := len(rest)) > 1:
            return {**e, f"{a!r:>{n}} and {b=}" "more": (yield)}
        case str() | None:
            del b
    try:
        x: float = -1.5e3 if not a else 2j
    except* (ValueError, KeyError) as error:
        raise TypeError(rb"\\x00", "", ...) from error
    return lambda *, k=1: [i for i in c if i]
'''
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(source.replace("(yield)", "1"))
    definition = Sources({"package": tmp_path / "package"}).find("package", "made")
    assert definition.digest() == "6122f58e0b8b480c"


def test_what_is_written_is_read_again(table, tmp_path):
    table.write(tmp_path)
    assert Table.read(tmp_path) == table
