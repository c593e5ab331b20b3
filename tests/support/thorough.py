"""Values of a parametrised test -> the same, marked as thorough: `make faults` plays them, `make test` does not.

Every promise has a test in `make test`; at further steps, or from further sides, it is tried where there is time.
"""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]
