"""Compares a shape of the stream with the versions before it, the stream's and those that readers saw. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidemark.schema.evolution import Difference, Verdict, compare_schemas
from tidemark.schema.table import TableSchema


def with_gone_columns(shape: TableSchema, ahead: list[TableSchema], gone: Collection[int]) -> list[TableSchema]:
    """The readers' versions with a column that is dropped by now (`gone`), oldest first."""
    return [
        version
        for version in ahead
        if version.relation_oid == shape.relation_oid and not {c.attnum for c in version.columns}.isdisjoint(gone)
    ]


def next_number(shape: TableSchema, latest: TableSchema | None, ahead: list[TableSchema]) -> int:
    """The version number of a new shape in the stream: that of a reader's version of the same shape, or else the next
    number. A shape without column numbers is never the same as one with them."""
    same = (version for version in ahead if version.same_shape(shape) and not in_doubt(version, shape))
    read_version = next(same, None)
    if read_version is not None:
        return read_version.version
    return 1 + max([0 if latest is None else latest.version, *(version.version for version in ahead)])


def differences_since(
    latest: TableSchema | None,
    ahead: list[TableSchema],
    schema: TableSchema,
    dropped: Collection[str],
    gone: Collection[str],
) -> list[Difference]:
    """The differences from the stream's last version. If the stream brought none, from the last reader's version,
    unless that is only newer: it has more columns, wider types, or lacks columns that were dropped since.

    `dropped` are names of columns of the earlier version, `gone` of this one, that the catalogue has as dropped."""
    if latest is not None:
        return compare_schemas(latest, schema, dropped)
    if not ahead or all(d.verdict is Verdict.FOLLOWED for d in compare_schemas(schema, ahead[-1], gone)):
        return []
    return compare_schemas(ahead[-1], schema, dropped)


def another_shape(
    latest: TableSchema | None,
    ahead: Sequence[TableSchema],
    schema: TableSchema,
    dropped: Collection[str] = (),
    gone: Collection[str] = (),
) -> list[Difference]:
    """The differences that keep a shape out of the Delta tables. These were made by the stream's last version, or by
    the first reader's version if the stream brought none; the stream may be behind that one, with narrower types.
    `dropped` and `gone` as in `differences_since`."""
    if latest is not None:
        return [*in_doubt(latest, schema), *compare_schemas(latest, schema, dropped)]
    if ahead and (doubt := in_doubt(ahead[0], schema)):
        return [*doubt, *compare_schemas(ahead[0], schema, dropped)]
    if not ahead or all(d.verdict is not Verdict.RESHAPE for d in compare_schemas(schema, ahead[0], gone)):
        return []
    return compare_schemas(ahead[0], schema, dropped)


def in_doubt(latest: TableSchema, schema: TableSchema) -> list[Difference]:
    """A difference if only one of the two versions has column numbers. Changes with names alone do not go into the same
    Delta table as changes with numbers, because a name may belong to another column by then."""
    if latest.relation_oid != schema.relation_oid or bool(latest.published) == bool(schema.published):
        return []
    reason = "columns were dropped beside others that came, and which of them some changes have is not certain"
    return [Difference(Verdict.RESHAPE, reason)]
