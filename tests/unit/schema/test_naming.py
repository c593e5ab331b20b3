"""Which columns of a target are called otherwise by now, by what its fields, older versions and the source say."""

from __future__ import annotations

import random

import pytest

from tidemark.schema.naming import Ahead, Naming, naming

FIELDS = ["_op", "id", "colour", "size"]
CALLED = {"id": 1, "colour": 2, "size": 3}


def test_a_field_that_says_nothing_is_what_its_name_was_before() -> None:
    assert naming(FIELDS, {}, CALLED, {1: "id", 2: "paint", 3: "size"}) == Naming(
        {"colour": "paint"}, {"id": 1, "paint": 2, "size": 3}
    )


def test_names_that_swap_and_a_new_column_of_an_old_name_are_told_apart() -> None:
    renamed = naming(FIELDS, {}, CALLED, {1: "number", 2: "size", 3: "colour", 4: "id"})
    assert renamed == Naming(
        {"id": "number", "colour": "size", "size": "colour"}, {"number": 1, "size": 2, "colour": 3}
    )


def test_what_a_field_says_of_itself_counts_before_its_name() -> None:
    told = {"id": 1, "colour": 3, "size": 2}
    assert naming(FIELDS, told, CALLED, {1: "id", 2: "size", 3: "colour"}).names == {}


def test_a_name_that_somebody_has_filled_already_is_that_column_from_then_on() -> None:
    """A repair added `paint` by hand, or the dropped column 3 was called so: `colour` stays, as a dropped one does."""
    by_hand = naming([*FIELDS, "paint"], CALLED, {**CALLED, "paint": 2}, {1: "id", 2: "paint", 3: "size"})
    assert by_hand == Naming({}, {"id": 1, "size": 3, "paint": 2})
    assert naming(FIELDS, CALLED, CALLED, {1: "id", 2: "size"}) == Naming({}, {"id": 1, "size": 2})


def test_a_column_that_took_the_place_of_a_dropped_one_can_be_renamed() -> None:
    taken = naming(FIELDS, CALLED, CALLED, {1: "id", 3: "size", 4: "colour"})
    assert taken == Naming({}, {"id": 1, "size": 3, "colour": 4})
    assert naming(FIELDS, taken.numbers, CALLED, {1: "id", 3: "size", 4: "paint"}).names == {"colour": "paint"}


def test_changes_from_before_a_rename_wait_where_the_target_has_the_name_for_a_later_column() -> None:
    told = {"id": 1, "paint": 2, "colour": 4, "size": 3}
    with pytest.raises(Ahead, match="colour"):
        naming([*FIELDS, "paint"], told, CALLED, {1: "id", 2: "colour", 3: "size"})


def test_whatever_is_renamed_added_and_dropped_each_number_keeps_its_field() -> None:
    """Against a model that keeps a value per number, over random alterations, some of them followed at once."""
    rng = random.Random(15)
    for _ in range(300):
        source, newest = {1: "id", 2: "a", 3: "b"}, 3
        fields = {name: number for number, name in source.items()}
        told: dict[str, int] = {}
        dropped: set[str] = set()
        called = dict(fields)
        for _ in range(6):
            free = [name for name in "abcdef" if name not in source.values() and name not in dropped]
            number = rng.choice(list(source))
            match rng.choice(["rename", "swap", "add", "drop"]):
                case "rename" if free:
                    source[number] = rng.choice(free)
                case "swap":
                    other = rng.choice(list(source))
                    source[number], source[other] = source[other], source[number]
                case "add" if free:
                    newest += 1
                    source[newest] = rng.choice(free)
                case "drop" if number > 1 and source[number] not in dropped:
                    name = next((f for f, n in fields.items() if n == number), source[number])
                    if name in source.values() and source[number] == name:
                        dropped.add(name)
                        del source[number]
            if rng.random() < 0.4:
                continue
            renamed = naming(list(fields), told, called, source)
            fields = {renamed.names.get(name, name): number for name, number in fields.items()}
            for number, name in source.items():
                fields.setdefault(name, number)
            told = dict(fields)
            assert {name: fields[name] for name in source.values()} == {name: n for n, name in source.items()}
