"""The oldest server of the tests and the newest, for tests that are for either.

`make faults` plays such a test on both. `make test` plays it on one of them, and which one changes from test to test:
so each server sees half of what there is to see, and the suite takes half of the time.
"""

from __future__ import annotations

import zlib
from typing import Final

import pytest

VERSIONS: Final = (16, 18)
EITHER: Final = [pytest.param(version, marks=pytest.mark.server(version)) for version in VERSIONS]


def share_out(items: list[pytest.Item]) -> None:
    """Mark those as thorough that `make test` plays on the other server."""
    for item in items:
        mark = item.get_closest_marker("server")
        if mark is not None:
            (version,) = mark.args
            test = item.nodeid.replace(str(version), "")
            if version != VERSIONS[zlib.crc32(test.encode()) % 2]:
                item.add_marker(pytest.mark.thorough)
