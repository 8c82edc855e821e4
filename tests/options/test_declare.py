"""Options are declared once; a wrong one is told with its key, its value and what it must be."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BeforeValidator, model_validator

from rag_r1.options.declare import OptionsError, options
from rag_r1.options.from_config import options_from, read_options
from rag_r1.options.types import Constraint, Count, Flag, PositiveCount, Seconds, Text


@options("shop.bread")
class Bread:
    loaves: PositiveCount = 1
    slices: Count | None = None
    baked_s: Seconds = 60.0
    dark: Flag = False
    grain: Literal["rye", "wheat"] = "rye"
    name: Annotated[Text, Constraint("the name of a bread")] = "brot"

    @model_validator(mode="after")
    def _no_dark_wheat(self) -> Bread:
        if self.dark and self.grain == "wheat":
            raise ValueError("grain is wheat and dark is true: there is no such bread")
        return self


@options("shop.cake", others="ignore")
class Cake:
    layers: PositiveCount = 1


@options("shop")
class Shop:
    cake: Annotated[Cake, BeforeValidator(lambda value: options_from(Cake, value))] = Cake()
    level: Literal[1, 2, 3] = 1


def test_wrong_nested_options_alone_are_replaced_and_numbers_are_named():
    assert read_options(Shop, {"cake": {"layers": 0}, "level": 2})[0] == Shop(level=2)
    with pytest.raises(OptionsError, match="^shop.level must be one of 1, 2, 3, not 4$"):
        Shop(level=4)


WRONG = {
    "loaves": [0, -1, True, "3", 1.5, None],
    "slices": [-1, False, "3", 2.0],
    "baked_s": [-0.1, True, "1", float("nan"), float("inf"), None],
    "dark": [1, 0, "yes", None],
    "grain": ["oats", 1, None],
    "name": [5, None, ["brot"]],
}
MUST = {
    "loaves": "a whole number of at least 1",
    "slices": "a whole number of at least 0 or null",
    "baked_s": "a number of seconds of at least 0",
    "dark": "true or false",
    "grain": "rye or wheat",
    "name": "the name of a bread",
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_value_is_told_with_its_key_and_what_it_must_be(name, value):
    made, [fault] = read_options(Bread, {name: value})
    assert (fault.key, str(fault)) == (
        f"shop.bread.{name}",
        f"shop.bread.{name} must be {MUST[name]}, not {value!r}",
    )
    assert made == Bread()


def test_an_unknown_key_is_told_with_those_that_there_are_and_the_nearest():
    _, [fault] = read_options(Bread, {"loafs": 3})
    assert str(fault) == (
        "unknown key shop.bread.loafs: use one of loaves, slices, baked_s, dark, grain, name; "
        "did you mean loaves?"
    )
    _, [fault] = read_options(Bread, {"zzz": 3})
    assert str(fault).endswith("grain, name")
    for name in (5, "self"):
        _, [fault] = read_options(Bread, {name: 3})
        assert fault.key == f"shop.bread.{name}"


@given(st.sets(st.sampled_from(sorted(WRONG)), min_size=1), st.data())
def test_every_wrong_option_is_told_once_and_the_right_ones_are_kept(names, data):
    given_ = {"loaves": 2, "slices": 8, "baked_s": 5, "name": "toast"}
    wrong = {name: data.draw(st.sampled_from(WRONG[name])) for name in names}
    made, faults = read_options(Bread, {**given_, **wrong, "loafs": 1})
    assert sorted(fault.key for fault in faults) == sorted(f"shop.bread.{name}" for name in {*names, "loafs"})
    assert made == Bread(**{name: value for name, value in given_.items() if name not in names})
    with pytest.raises(OptionsError) as caught:
        options_from(Bread, {**given_, **wrong})
    assert len(caught.value.faults) == len(names)


def test_options_that_are_wrong_together_are_told_where_each_is_right_by_itself():
    _, [fault] = read_options(Bread, {"dark": True, "grain": "wheat"})
    assert (fault.key, str(fault)) == (
        "shop.bread.grain",
        "shop.bread.grain is wheat and dark is true: there is no such bread",
    )


def test_options_can_stand_under_another_key():
    config = {"loaves": 0, "slcies": 1}
    assert [
        str(fault).replace("shop.toast", "shop.bread")
        for fault in read_options(Bread, config, "shop.toast")[1]
    ] == [str(fault) for fault in read_options(Bread, config)[1]]
    assert {fault.key for fault in read_options(Bread, config, "shop.toast")[1]} == {
        "shop.toast.loaves",
        "shop.toast.slcies",
    }


def test_a_fault_within_a_section_has_the_key_of_the_section():
    _, [fault] = read_options(Shop, {"cake": {"layers": 0, "colour": "blue"}})
    assert fault.key == "shop.cake.layers"
    assert options_from(Shop, {"cake": {"layers": 2, "colour": "blue"}}).cake == Cake(2)


def test_every_object_is_checked_however_it_is_made_and_cannot_be_changed():
    for make in (lambda: Bread(0), lambda: Bread(loaves=0), lambda: replace(Bread(), loaves=0)):
        with pytest.raises(
            ValueError, match="^shop.bread.loaves must be a whole number of at least 1, not 0$"
        ):
            make()
    with pytest.raises(FrozenInstanceError):
        Bread().loaves = 2
    with pytest.raises(TypeError):
        Bread(1, 1, 1.0, True, "rye", "brot", 7)


def test_what_is_wrong_survives_the_way_from_another_process():
    error = OptionsError(read_options(Bread, {"loaves": 0, "dark": 1})[1])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and [fault.key for fault in again.faults] == [
        "shop.bread.loaves",
        "shop.bread.dark",
    ]
