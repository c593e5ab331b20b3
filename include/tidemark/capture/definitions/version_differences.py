"""Compares a table's new shape in the stream with its earlier versions. Pure.

The functions take these versions:

- `latest` is the last version that the stream brought, None if it brought none.
- `ahead` are newer versions, oldest first, that only a backfill's reader has read in the catalogue: the readers'
  versions. The stream may not have reached them yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidemark.schema.evolution import Difference, Verdict, compare_schemas
from tidemark.schema.table import TableSchema


def differences_since(
    latest: TableSchema | None,
    ahead: list[TableSchema],
    schema: TableSchema,
    dropped: Collection[str],
    gone: Collection[str],
) -> list[Difference]:
    """The differences of `schema` from the stream's last version, or else from the last of the readers' versions.

    There are none if that reader's version is only newer: it has more columns, wider types, or lacks columns that were
    dropped since. `dropped` are names of columns of the earlier version that the catalogue has as dropped; `gone` are
    those of `schema`."""
    if latest is not None:
        return compare_schemas(latest, schema, dropped)
    if not ahead or all(d.verdict is Verdict.FOLLOWED for d in compare_schemas(schema, ahead[-1], gone)):
        return []
    return compare_schemas(ahead[-1], schema, dropped)


def shape_differences(
    latest: TableSchema | None,
    ahead: Sequence[TableSchema],
    schema: TableSchema,
    dropped: Collection[str] = (),
    gone: Collection[str] = (),
) -> list[Difference]:
    """The differences that may keep the shape out of the existing Delta tables.

    The stream's last version made these tables; if the stream brought none, the first of the readers' versions did. The
    stream may be behind that one, with narrower types. `dropped` and `gone` are as in `differences_since`."""
    if latest is not None:
        return [*numbering_difference(latest, schema), *compare_schemas(latest, schema, dropped)]
    if ahead and (doubt := numbering_difference(ahead[0], schema)):
        return [*doubt, *compare_schemas(ahead[0], schema, dropped)]
    if not ahead or all(d.verdict is not Verdict.RESHAPE for d in compare_schemas(schema, ahead[0], gone)):
        return []
    return compare_schemas(ahead[0], schema, dropped)


def numbering_difference(latest: TableSchema, schema: TableSchema) -> list[Difference]:
    """One difference if only one of the two versions has column numbers, else none. Changes with names alone do not go
    into the same Delta table as changes with numbers, because a name may belong to another column by then."""
    if latest.relation_oid != schema.relation_oid or bool(latest.published) == bool(schema.published):
        return []
    reason = "columns were dropped beside others that came, and which of them some changes have is not certain"
    return [Difference(Verdict.RESHAPE, reason)]
