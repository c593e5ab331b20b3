"""What the fuzzer found of each decoder is read or refused by name, as tests/fuzzing/decoders.py says."""

from __future__ import annotations

import pytest

from tests.fuzzing import corpora
from tests.fuzzing.decoders import DECODERS, joined, parts_of


@pytest.mark.parametrize("name", DECODERS)
def test_every_input_that_reached_something_new_is_refused_by_name_or_read(name: str) -> None:
    outcomes = {DECODERS[name].has_read(content) for content in corpora.kept(name)}
    assert outcomes == {True, False}  # refused always, or never, would prove little


@pytest.mark.parametrize("name", DECODERS)
def test_a_fuzzer_begins_with_bytes_that_are_read(name: str) -> None:
    outcomes = [DECODERS[name].has_read(content) for content in DECODERS[name].seeds()]
    assert outcomes == [True] * len(outcomes) != []


def test_parts_come_apart_as_they_were_joined() -> None:
    parts = [b"a", b"", b"c" * 300]
    assert parts_of(joined(parts)) == parts
    assert parts_of(joined(parts)[:-1]) == [b"a", b"", b"c" * 299]
