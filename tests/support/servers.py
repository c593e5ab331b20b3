"""The servers of the tests, for tests that are for any of them.

`make faults` plays such a test on each. `make test` plays it on the oldest or the newest, and which one changes from
test to test: so each of these sees half of what there is to see, and the suite takes half of the time.
"""

from __future__ import annotations

import zlib
from typing import Final

import pytest

OLDEST_AND_NEWEST: Final = (16, 18)
VERSIONS: Final = (16, 17, 18)
# The fixture of each.
NAMES: Final = {16: "postgres16", 17: "postgres17", 18: "postgres"}
ANY: Final = [pytest.param(version, marks=pytest.mark.server(version)) for version in VERSIONS]
# 17 comes without the extension `vector`.
ANY_WITH_VECTOR: Final = [pytest.param(version, marks=pytest.mark.server(version)) for version in OLDEST_AND_NEWEST]
# For tests that `make test` plays on the oldest and on the newest.
EACH: Final = [16, pytest.param(17, marks=pytest.mark.thorough), 18]


def share_out(items: list[pytest.Item]) -> None:
    """Mark those as thorough that `make test` leaves to `make faults`."""
    for item in items:
        mark = item.get_closest_marker("server")
        if mark is not None:
            (version,) = mark.args
            test = item.nodeid.replace(str(version), "")
            if version != OLDEST_AND_NEWEST[zlib.crc32(test.encode()) % 2]:
                item.add_marker(pytest.mark.thorough)
