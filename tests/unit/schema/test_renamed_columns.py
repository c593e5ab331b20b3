"""Which columns of a target are called otherwise by now, by what its fields, older versions and the source say."""

from __future__ import annotations

import random

import pytest

from tidemark.schema.renamed_columns import NamesAhead, Naming, names_in_target, naming

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
    with pytest.raises(NamesAhead, match="colour"):
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


# --- names that a dropped column has ----------------------------------------------------------------------------------


def test_what_is_dropped_keeps_its_name_and_a_later_column_gets_a_number() -> None:
    here = {"id": 1, "size": 2}
    assert names_in_target(here, {1: "id", 4: "size"}, {2: "size"}) == {1: "id", 2: "size", 4: "size__2"}
    assert names_in_target({}, {1: "id", 4: "size"}, {2: "size"}) == {1: "id", 2: "size", 4: "size__2"}
    here["size__2"] = 4
    assert names_in_target(here, {1: "id", 6: "size"}, {2: "size", 4: "size"})[6] == "size__3"
    assert names_in_target(here, {1: "id", 4: "length"}, {2: "size"})[4] == "length"
    assert names_in_target({**here, "length": 4}, {1: "id", 4: "size"}, {2: "size"})[4] == "size__2"


def test_a_column_that_is_called_so_at_the_source_keeps_the_name_that_it_has() -> None:
    named_first = names_in_target({"id": 1, "size": 2, "size__2": 3}, {1: "id", 3: "size__2", 4: "size"}, {2: "size"})
    assert named_first == {1: "id", 2: "size", 3: "size__2", 4: "size__3"}
    numbered_first = names_in_target({"size": 2, "size__2": 4}, {4: "size", 5: "size__2"}, {2: "size"})
    assert numbered_first == {2: "size", 4: "size__2", 5: "size__2__2"}


def test_names_that_delta_does_not_tell_apart_are_one() -> None:
    assert names_in_target({"Size": 2}, {4: "size"}, {2: "Size"}) == {2: "Size", 4: "size__2"}


def test_a_column_that_took_the_place_of_a_dropped_one_keeps_the_name() -> None:
    """As versions before this one left it: of the dropped column nothing is in the target."""
    assert names_in_target({"id": 1, "size": 4}, {1: "id", 4: "size"}, {}) == {1: "id", 4: "size"}


def test_whatever_becomes_of_columns_each_has_a_field_of_its_own_for_good() -> None:
    """Random alterations, some of which the target does not see by themselves: a field stays its column's, no other
    column's coming and going renames it, and a live column is called as at the source where nothing dropped is."""
    rng = random.Random(21)
    for _ in range(300):
        newest = 3
        source = {1: "id", 2: "a", 3: "b"}
        last_names = dict(source)
        fields: dict[str, int] = {}
        for _ in range(8):
            number, free = rng.choice(list(source)), [n for n in ("a", "b", "c", "a__2") if n not in source.values()]
            match rng.choice(["rename", "add", "add", "drop", "drop"]):
                case "rename" if free and number > 1:
                    source[number] = rng.choice(free)
                case "add" if free:
                    newest += 1
                    source[newest] = rng.choice(free)
                case "drop" if number > 1:
                    del source[number]
            last_names.update(source)
            if rng.random() < 0.4:
                continue
            gone = {number: last_names[number] for number in fields.values() if number not in source}
            names = names_in_target(fields, source, gone)
            assert len(set(names.values())) == len(names) == len(source) + len(gone)
            renamed = naming(list(fields), fields, {}, {n: names[n] for n in source})
            before = {number: name for name, number in fields.items()}
            fields = {renamed.names.get(name, name): number for name, number in fields.items()}
            for number in source:
                fields.setdefault(names[number], number)
            assert {names[n]: n for n in names} == fields
            assert all(names[number] == before[number] for number in gone)
            of_dropped = {names[number] for number in gone}
            for number, name in source.items():
                assert names[number].startswith(name)
                assert names[number] == name or name in of_dropped or name in names.values()
