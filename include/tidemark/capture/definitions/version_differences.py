"""Compares a shape of the stream with the versions before it, the stream's and those that readers saw. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidemark.schema.evolution import Difference, Verdict, compare_schemas
from tidemark.schema.table import TableSchema


def with_gone_columns(shape: TableSchema, ahead: list[TableSchema], gone: Collection[int]) -> list[TableSchema]:
    """The readers' versions with columns that are gone by now, oldest first."""
    return [
        version
        for version in ahead
        if version.relation_oid == shape.relation_oid and not {c.attnum for c in version.columns}.isdisjoint(gone)
    ]


def next_number(shape: TableSchema, latest: TableSchema | None, ahead: list[TableSchema]) -> int:
    """The number of a shape that the stream brings anew: a reader's, where one saw it first, or else the next."""
    read_version = next((version for version in ahead if version.same_shape(shape)), None)
    if read_version is not None:
        return read_version.version
    return 1 + max([0 if latest is None else latest.version, *(version.version for version in ahead)])


def differences_since(
    latest: TableSchema | None, ahead: list[TableSchema], schema: TableSchema, dropped: Collection[str]
) -> list[Difference]:
    """What changed since the stream's last version. If it brought none, a reader's stands for it, unless the stream
    is only behind what that reader saw."""
    if latest is not None:
        return compare_schemas(latest, schema, dropped)
    if not ahead or all(d.verdict is Verdict.FOLLOWED for d in compare_schemas(schema, ahead[-1])):
        return []
    return compare_schemas(ahead[-1], schema, dropped)


def another_shape(
    latest: TableSchema | None, ahead: Sequence[TableSchema], schema: TableSchema, dropped: Collection[str] = ()
) -> list[Difference]:
    """What keeps the shape out of a target that was made by the stream's last version or, where it brought none, by the
    first that a reader saw; of that one the stream may only be behind, as where it has a wider type."""
    if latest is not None:
        return [*in_doubt(latest, schema), *compare_schemas(latest, schema, dropped)]
    if not ahead or all(d.verdict is not Verdict.RESHAPE for d in compare_schemas(schema, ahead[0])):
        return []
    return compare_schemas(ahead[0], schema, dropped)


def in_doubt(latest: TableSchema, schema: TableSchema) -> list[Difference]:
    """Where a message can be read in more than one way none is taken: its changes have names alone, and neither what is
    before them nor what is behind them goes into one table with them."""
    if latest.relation_oid != schema.relation_oid or bool(latest.published) == bool(schema.published):
        return []
    reason = "columns were dropped beside others that came, and which of them some changes have is not certain"
    return [Difference(Verdict.RESHAPE, reason)]
