"""What one look into a pipeline's staging says, whatever the numbers of its generations are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.lsn import Lsn
from tidemark.staging import staged_folders
from tidemark.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "lake"))


def _batch(store: Store, generation: int, start: int) -> str:
    name = f"{Lsn(start).hex16}-a"
    store.write_new(f"p/staging/g{generation}/{name}/manifest.json", b"")
    return name


def test_a_look_finds_what_lies_above_and_all_of_newer_generations(store: Store) -> None:
    _batch(store, 1, 50)
    _, second, third = (_batch(store, 2, start) for start in (10, 20, 30))
    newer = _batch(store, 3, 5)
    look = staged_folders.read(store, "p", 2, Lsn(20))
    assert look.numbers == [2, 3]
    assert look.of(2, Lsn(20)) == [second, third]
    assert look.of(2, Lsn(25)) == [third]
    assert look.of(3, Lsn(0)) == [newer]


def test_what_a_look_does_not_say_is_listed(store: Store) -> None:
    first, second = _batch(store, 1, 10), _batch(store, 1, 20)
    look = staged_folders.read(store, "p", 1, Lsn(20))
    assert look.of(1, Lsn(10)) == [first, second]
    later = _batch(store, 2, 30)  # of a generation that was opened behind the look
    assert look.of(2, Lsn(0)) == [later]


@pytest.mark.parametrize(("open_one", "seen"), [(8, [8, 9, 10, 11]), (9, [9, 10, 11]), (10, [8, 9, 10, 11])])
def test_generations_of_two_digits_are_found(store: Store, open_one: int, seen: list[int]) -> None:
    names = {number: _batch(store, number, number) for number in (8, 9, 10, 11)}
    look = staged_folders.read(store, "p", open_one, Lsn(1))
    assert look.numbers == seen
    assert {number: look.of(number, Lsn(0)) for number in seen} == {number: [names[number]] for number in seen}


def test_a_pipeline_without_a_generation_has_whatever_staging_has(store: Store) -> None:
    assert staged_folders.read(store, "p", None, Lsn(0)).numbers == []
    name = _batch(store, 2, 10)
    look = staged_folders.read(store, "p", None, Lsn(0))
    assert look.numbers == [2]
    assert look.of(2, Lsn(0)) == [name]
    assert staged_folders.read(store, "p", 3, Lsn(0)).numbers == [3]


def test_from_the_tenth_generation_on_older_ones_are_not_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names stand behind it where names are sorted as text, and they may be thousands."""
    _, newest = _batch(store, 9, 5), _batch(store, 10, 5)

    def listed_from(*_: object) -> None:
        raise AssertionError("g9 lies behind g10")

    monkeypatch.setattr(Store, "list_from", listed_from)
    look = staged_folders.read(store, "p", 10, Lsn(5))
    assert (look.numbers[-1], look.of(10, Lsn(5))) == (10, [newest])
