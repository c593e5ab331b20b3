"""Where the tests of `make test` write, and who plays what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.checkout import Checkout, this_checkout
from sandbox.checks import suites


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout = Checkout(tmp_path / "checkout")
    checkout.made.mkdir(parents=True)
    return checkout


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def meminfo(tmp_path: Path, available: int) -> Path:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n")
    return file


def test_tests_write_to_memory_where_there_is_plenty(
    checkout: Checkout, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "LEAST_FREE", 1)
    plenty = meminfo(tmp_path, suites.LEAST_AVAILABLE)
    folder = suites.scratch(checkout, memory, plenty)
    assert folder.parent == memory
    assert suites.scratch(checkout, memory, plenty) == folder
    assert suites.scratch(Checkout(tmp_path / "another"), memory, plenty) != folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_and_to_the_checkout_where_there_is_not(
    checkout: Checkout, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = meminfo(tmp_path, suites.LEAST_AVAILABLE)
    of_the_checkout = checkout.made / "tmp"
    assert suites.scratch(checkout, tmp_path / "no such folder", plenty) == of_the_checkout
    assert suites.scratch(checkout, memory, tmp_path / "no such file") == of_the_checkout
    assert suites.scratch(checkout, memory, meminfo(tmp_path, suites.LEAST_AVAILABLE - 1024)) == of_the_checkout
    monkeypatch.setattr(suites, "LEAST_FREE", 2**60)
    assert suites.scratch(checkout, memory, plenty) == of_the_checkout


def test_whatever_make_test_leaves_out_is_played_by_another_target() -> None:
    played = [
        *suites.FAULTS,
        *suites.THOROUGH,
        *(f"tests/simulation/{name}.py" for name in suites.SIMULATIONS),
        suites.SOAK,
        suites.SOAK_FOLLOWING,
        suites.SCHEDULER,
        suites.CLUSTERS,
        suites.TUTORIAL,
    ]
    root = this_checkout().root
    assert all((root / path).exists() for path in played)
    left_out = {
        str(file.relative_to(root))
        for file in (root / "tests").rglob("test_*.py")
        if any(mark in file.read_text() for mark in ("thorough", "pytest.mark.some("))
    }
    assert left_out
    assert not [file for file in left_out if not any(file.startswith(path) for path in played)]
