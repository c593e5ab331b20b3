"""What a run that follows sees of its pipeline file while that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.capture.following import changed_file
from tidemark.capture.following.changed_file import LOOK_S, REFUSED_S, ChangedFile
from tidemark.config.file_reader import load

TEXT = """\
source: {connection: shop_source}
tables: [shop.*]
lake: /lake
schedule: "*/15 * * * *"
follow: {every: 2s}
"""


class Watched:
    """A file, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.yaml"
        self.path.write_text(TEXT)
        self.now = 0.0
        self.file = ChangedFile(load(self.path), lambda: self.now)

    def says(self, text: str) -> None:
        self.path.write_text(text)
        self.now += LOOK_S

    @property
    def tables(self) -> list[str] | None:
        newer = self.file.newer()
        return None if newer is None else [rule.pattern for rule in newer.tables]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_file_that_says_the_same_in_other_words_has_not_changed(watched: Watched) -> None:
    assert watched.tables is None
    watched.says("# a note\n" + TEXT)
    assert watched.tables is None


def test_what_it_says_else_is_new_until_it_is_taken_up(watched: Watched) -> None:
    watched.says(TEXT.replace("shop.*", "shop.o*"))
    assert watched.tables == ["shop.o*"]
    newer = watched.file.newer()
    assert newer is not None
    watched.file.take_up(newer)
    watched.now += LOOK_S
    assert watched.tables is None
    watched.says(TEXT)
    assert watched.tables == ["shop.*"]


def test_a_file_that_was_changed_and_changed_back_is_as_it_was(watched: Watched) -> None:
    watched.says(TEXT.replace("shop.*", "shop.o*"))
    assert watched.tables == ["shop.o*"]
    watched.says(TEXT)
    assert watched.tables is None


def test_a_broken_or_missing_file_is_left_until_it_is_whole(watched: Watched) -> None:
    watched.says("tables: [\n")
    assert watched.tables is None
    watched.path.unlink()
    watched.now += LOOK_S
    assert watched.tables is None
    watched.says(TEXT.replace("shop.*", "shop.o*"))
    assert watched.tables == ["shop.o*"]


def test_what_tells_where_the_data_is_is_left_to_the_next_run(watched: Watched) -> None:
    watched.says(TEXT.replace("shop.*", "shop.o*").replace("/lake", "/other"))
    assert watched.tables is None


def test_what_was_refused_is_new_again_after_a_while(watched: Watched) -> None:
    watched.says(TEXT.replace("shop.*", "shop.o*"))
    assert watched.tables == ["shop.o*"]
    watched.file.refuse()
    assert watched.tables is None
    watched.now += REFUSED_S
    assert watched.tables == ["shop.o*"]


def test_a_broken_file_is_said_once_and_read_again_until_it_is_sound(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.says("tables: [\n")
    assert watched.tables is None
    watched.now += LOOK_S
    assert watched.tables is None
    assert len(caplog.records) == 1
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(changed_file, "load", unreadable)
        watched.says(TEXT.replace("shop.*", "shop.o*"))
        assert watched.tables is None
        assert [record.message.rpartition(" ")[2] for record in caplog.records] == ["PermissionError"]
    watched.now += LOOK_S
    assert watched.tables == ["shop.o*"]


def unreadable(path: Path) -> None:
    raise PermissionError(path)
