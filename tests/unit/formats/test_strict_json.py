"""What a record of JSON writes, and what it refuses to write."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from tidemark.lsn import Lsn
from tidemark.strict_json import JsonRecord


class Place(JsonRecord):
    """Its field may hold anything, as no format's may."""

    at: Any


def test_an_lsn_is_written_as_postgresql_writes_it() -> None:
    assert Place(Lsn(0x16B3748)).to_json() == {"at": "0/16B3748"}


def test_a_type_that_json_lacks_is_refused_by_its_name_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="a record cannot hold a PurePosixPath: JSON has none; give the field a type"):
        Place(PurePosixPath("/lake")).to_json()
