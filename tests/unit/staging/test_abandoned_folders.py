"""Which unregistered folders are garbage (R4)."""

from __future__ import annotations

import pytest

from tidemark.lsn import Lsn
from tidemark.staging.abandoned_folders import abandoned


def folder(start: int, attempt: str) -> str:
    return f"{Lsn(start).hex16}-{attempt}"


def garbage(*folders: str, confirmed: int, running: tuple[str, ...] = ()) -> list[str]:
    return abandoned(
        folders,
        registered=[(Lsn(100), Lsn(200), "dead"), (Lsn(200), Lsn(300), "dead")],
        has_ended=lambda attempt: attempt not in running,
        confirmed=Lsn(confirmed),
    )


def test_a_registered_batch_is_never_garbage() -> None:
    assert garbage(folder(100, "dead"), folder(200, "dead"), confirmed=0) == []


def test_what_the_source_can_still_send_is_garbage_once_its_attempt_has_ended() -> None:
    assert garbage(folder(300, "dead"), confirmed=300) == [folder(300, "dead")]
    assert garbage(folder(300, "dead"), confirmed=300, running=("dead",)) == []


def test_what_the_source_cannot_send_any_more_stays_unless_a_registered_batch_covers_it() -> None:
    assert garbage(folder(300, "other"), confirmed=301) == []
    assert garbage(folder(150, "other"), confirmed=500) == [folder(150, "other")]
    assert garbage(folder(99, "other"), confirmed=500) == []


def test_the_same_start_by_another_attempt_is_covered() -> None:
    assert garbage(folder(200, "loser"), confirmed=500) == [folder(200, "loser")]


@pytest.mark.parametrize("name", ["generation.json", "notes", "00000000000001F4", "zz-attempt", "-x"])
def test_a_folder_of_another_name_is_nobodys_to_remove(name: str) -> None:
    assert garbage(name, confirmed=0) == []
