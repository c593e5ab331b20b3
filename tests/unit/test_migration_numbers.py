from __future__ import annotations

from importlib.resources import files


def test_every_migration_has_a_number_of_its_own() -> None:
    """Of two files with one number the second would never be applied, without a word."""
    names = [file.name for file in files("tidemark.ledger.migrations").iterdir() if file.name.endswith(".sql")]
    assert sorted(int(name.partition("_")[0]) for name in names) == list(range(1, len(names) + 1)), sorted(names)
