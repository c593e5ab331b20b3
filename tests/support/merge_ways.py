"""Chooses who merges in a test: Spark alone, by Delta's public API alone, or the driver with changes that count as
many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.target import merge_choice
from tidemark.target.delta import internals


def leave_to_spark(patch: pytest.MonkeyPatch) -> None:
    """The driver folds nothing."""
    patch.setattr(merge_choice, "FEW", replace(merge_choice.FEW, rows=-1))
    patch.setattr(merge_choice, "MANY", replace(merge_choice.MANY, rows=-1))


def none_are_few(patch: pytest.MonkeyPatch, rows: int = 0) -> None:
    """What the driver folds counts as many from so many changes on."""
    patch.setattr(merge_choice, "FEW", replace(merge_choice.FEW, rows=rows))


def take_the_public_path(patch: pytest.MonkeyPatch) -> None:
    """Delta's own classes count as another Delta's."""
    patch.setattr(internals, "misfit", lambda spark: "a test says so")
