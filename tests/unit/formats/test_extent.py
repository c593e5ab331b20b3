"""What a file of changes says of itself, in the words of docs/formats.md and in no others."""

from __future__ import annotations

import json

import pytest

from tidemark.formats.extent import Extent


def test_an_extent_is_said_in_the_words_that_files_have_it_in() -> None:
    said = Extent((7, 0), (9, 2), is_self_contained=False).to_metadata()
    assert json.loads(said.pop("tidemark.extent")) == {"first": [7, 0], "last": [9, 2], "is_self_contained": False}
    assert not said


def test_what_is_said_is_read_back() -> None:
    for extent in (Extent((7, 0), (9, 2), is_self_contained=True), Extent((7, 0), (7, 0), is_self_contained=False)):
        metadata = {name.encode(): value.encode() for name, value in extent.to_metadata().items()}
        assert Extent.from_metadata(metadata) == extent


OTHER_WORDS = (
    b"{",
    b'{"first": 3}',
    b'{"first": [7, 0], "last": [9, 2], "is_self_contained": 1}',
    b'{"first": [7, 0], "last": [9, 2], "is_self_contained": true, "more": 1}',
    b'{"first": [7, 0], "last": [9, 1e999], "is_self_contained": true}',
    b'{"first": ' + b"[" * 100_000,
    b"\xff",
)


@pytest.mark.parametrize("said", [None, {}, *({b"tidemark.extent": words} for words in OTHER_WORDS)])
def test_a_file_that_does_not_say_it_in_these_words_says_nothing(said: dict[bytes, bytes] | None) -> None:
    assert Extent.from_metadata(said) is None
