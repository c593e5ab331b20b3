"""What a change of a definition consists of: statements, and the places between them.

A kind of change is a generator over the table's state. It yields each statement after it brought the state to what that
statement leaves, so that changes of rows in between are valid; it yields nothing where the state has nothing to change
in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.definitions.altered_table import AlteredTable


@dataclass(frozen=True, slots=True)
class Between:
    """Changes of rows, where the sequence has such."""


BETWEEN = Between()


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements of one transaction, also where those around it are not."""

    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alone:
    """A statement that cannot be in a transaction with others."""

    statement: str


Statement = str | Between | Transaction | Alone
Statements = Iterator[Statement]
Kind = Callable[[AlteredTable], Statements]
