"""A user's YAML is read within limits, whatever it holds."""

import pytest

from rag_r1.io.bounded_yaml import YamlError, load_yaml, read_yaml
from rag_r1.protocols import ProtocolError, load_protocol

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(7)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [*{chr(97 + i)}, *{chr(97 + i)}]}}\n" for i in range(24)
)
#: Different keys, of which all have the same hash.
COLLISIONS = "{" + ", ".join(f"{(2**61 - 1) * i}: x" for i in range(1, 1_100)) + "}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 100_000, "nested more than 64 deep"),
        ("{a: " * 100_000, "nested more than 64 deep"),
        ("\n".join(" " * i + "a:" for i in range(100)), "nested more than 64 deep"),
        ("- " * 50_000 + "a", "nested more than 64 deep"),
        ("? " * 50_000 + "a", "nested more than 64 deep"),
        (LAUGHS, "more than 200,000 values, with its aliases written out"),
        (MERGES, "more than 200,000 values, with its aliases written out"),
        ("[" + "a, " * 250_000 + "]", "more than 200,000 values"),
        ("&a [*a]", "stands inside itself"),
        ("a: &a {b: {c: *a}}", "stands inside itself"),
        ("[*a]", "undefined alias"),
        ("x" * (5 << 20), "more than 4 MiB"),
        ("a: " + "9" * 5000, "more than 400 digits"),
        ("a: " + "1:" * 200_000 + "1", "more than 400 digits"),
        ('a: !!int "' + "1:" * 200_000 + '1"', "more than 400 digits"),
        ("a: !!int |\n  " + "1:" * 200_000 + "1", "more than 400 digits"),
        ('a: !<tag:yaml.org,2002:float> "' + "1:" * 200_000 + '1"', "more than 400 digits"),
        (COLLISIONS, "more than 1,000 whole numbers of 18 digits and more"),
        ("[" + "!!int '2305843009213693951', " * 1_001 + "]", "more than 1,000 whole numbers"),
        ("a: &a '" + "x" * 100_000 + "'\nb: [" + "*a, " * 10_000 + "]", "more than 200,000 values"),
        ("a: 2001-99-99", "a value cannot be read"),
        ("a: !!bool perhaps", "a value cannot be read"),
        ('a: !!int ""', "a value cannot be read"),
        ("{[1]: 2}", "unhashable key"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: \x00", "not allowed"),
    ],
    ids=lambda value: value[:12].strip() if isinstance(value, str) else None,
)
def test_hostile_yaml_is_refused_in_a_sentence(text, fault):
    with pytest.raises(YamlError, match=fault) as error:
        load_yaml(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_a_file_of_brackets_is_no_protocol(tmp_path):
    (tmp_path / "p.yaml").write_text("[" * 100_000)
    with pytest.raises(ProtocolError, match="cannot read protocol .*p.yaml: it is nested more than 64 deep"):
        load_protocol(str(tmp_path / "p.yaml"))


def test_honest_yaml_is_read_with_its_aliases_merges_and_encoding(tmp_path):
    (tmp_path / "a.yaml").write_bytes("\ufeffa: &a {x: 1}\nb: {<<: *a, y: Käse}\nc: *a\nd: 5e-7".encode())
    values = {"a": {"x": 1}, "b": {"x": 1, "y": "Käse"}, "c": {"x": 1}, "d": "5e-7"}
    assert read_yaml(tmp_path / "a.yaml") == values
    (tmp_path / "b.yaml").write_bytes(b"a: \xff")
    with pytest.raises(YamlError, match="not UTF-8"):
        read_yaml(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_bytes(b" " * (5 << 20))
    with pytest.raises(YamlError, match="more than 4 MiB"):
        read_yaml(tmp_path / "c.yaml")


def test_a_mapping_that_merges_keys_may_itself_be_merged_before_it_is_built():
    text = "a: &a {x: 1}\nb: {c: &c {<<: *a, x: 2}}\nd: {<<: *c}"
    assert load_yaml(text) == {"a": {"x": 1}, "b": {"c": {"x": 2}}, "d": {"x": 2}}
