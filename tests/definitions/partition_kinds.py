"""Kinds of change of the partitions of a partitioned table."""

from __future__ import annotations

from tests.definitions.altered_table import AlteredTable
from tests.definitions.statements import BETWEEN, Kind, Statements


def _bounds(t: AlteredTable, leaf: str) -> str:
    low, high = {**t.leaves, **t.detached}[leaf]
    return f"FOR VALUES FROM ({low}) TO ({high})"


def _next_bounds(t: AlteredTable) -> tuple[int, int]:
    low = 10_000 + 1000 * t.number()
    return low, low + 1000


def partition_created(t: AlteredTable) -> Statements:
    if t.is_partitioned:
        leaf = t.new_name("leaf")
        t.leaves[leaf] = _next_bounds(t)
        yield f"CREATE TABLE {t.home}.{leaf} PARTITION OF {t.here} {_bounds(t, leaf)}"
        if t.identity in ("full", "nothing"):
            yield f"ALTER TABLE {t.home}.{leaf} REPLICA IDENTITY {t.identity.upper()}"


def unlogged_partition_created(t: AlteredTable) -> Statements:
    if t.is_partitioned:
        leaf = t.new_name("leaf")
        t.leaves[leaf] = _next_bounds(t)
        t.unlogged_leaves.add(leaf)
        yield f"CREATE UNLOGGED TABLE {t.home}.{leaf} PARTITION OF {t.here} {_bounds(t, leaf)}"
        if t.identity in ("full", "nothing"):
            yield f"ALTER TABLE {t.home}.{leaf} REPLICA IDENTITY {t.identity.upper()}"


def partition_unlogged(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and leaf not in t.unlogged_leaves:
        t.unlogged_leaves.add(leaf)
        yield f"ALTER TABLE {t.home}.{leaf} SET UNLOGGED"


def partition_unlogged_for_a_while(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and leaf not in t.unlogged_leaves:
        yield f"ALTER TABLE {t.home}.{leaf} SET UNLOGGED"
        yield BETWEEN
        yield f"ALTER TABLE {t.home}.{leaf} SET LOGGED"


def partition_logged(t: AlteredTable) -> Statements:
    for leaf in sorted(t.unlogged_leaves)[:1]:
        t.unlogged_leaves.remove(leaf)
        yield f"ALTER TABLE {t.home}.{leaf} SET LOGGED"


def partition_detached(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and len(t.leaves) > 1:
        t.detached[leaf] = t.leaves.pop(leaf)
        t.unlogged_leaves.discard(leaf)
        yield f"ALTER TABLE {t.here} DETACH PARTITION {t.home}.{leaf}"


def partition_detached_and_attached(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and len(t.leaves) > 1 and leaf not in t.unlogged_leaves:
        t.detached[leaf] = t.leaves.pop(leaf)
        yield f"ALTER TABLE {t.here} DETACH PARTITION {t.home}.{leaf}"
        yield BETWEEN
        bounds = _bounds(t, leaf)
        t.leaves[leaf] = t.detached.pop(leaf)
        yield f"ALTER TABLE {t.here} ATTACH PARTITION {t.home}.{leaf} {bounds}"


def table_attached(t: AlteredTable) -> Statements:
    """With what it holds."""
    if t.is_partitioned and all(c.is_ordinary and c.fills != "identity" for c in t.columns):
        leaf = t.new_name("leaf")
        low, high = _next_bounds(t)
        yield f"CREATE TABLE {t.home}.{leaf} (LIKE {t.here} INCLUDING ALL)"
        if t.identity in ("full", "nothing"):
            yield f"ALTER TABLE {t.home}.{leaf} REPLICA IDENTITY {t.identity.upper()}"
        home, name, leaves, listed = t.home, t.name, t.leaves, t.base
        t.leaves = {leaf: (low, high)}
        insert = t.insert().replace(f"INTO {home}.{name} ", f"INTO {home}.{leaf} ")
        t.leaves = {**leaves, leaf: (low, high)}
        assert listed == t.base
        yield insert
        yield f"ALTER TABLE {t.here} ATTACH PARTITION {t.home}.{leaf} {_bounds(t, leaf)}"


def partition_truncated(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf:
        yield f"TRUNCATE {t.home}.{leaf}"


def partition_dropped(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and len(t.leaves) > 1:
        del t.leaves[leaf]
        t.unlogged_leaves.discard(leaf)
        yield f"DROP TABLE {t.home}.{leaf}"


def partition_comes_and_goes(t: AlteredTable) -> Statements:
    if t.is_partitioned:
        before = set(t.leaves)
        yield from partition_created(t)
        yield BETWEEN
        (leaf,) = set(t.leaves) - before
        del t.leaves[leaf]
        yield f"DROP TABLE {t.home}.{leaf}"


def partition_of_other_identity_for_a_while(t: AlteredTable) -> Statements:
    leaf = _one(t)
    if leaf and t.identity == "default" and all(c.is_ordinary for c in t.columns):
        yield f"ALTER TABLE {t.home}.{leaf} REPLICA IDENTITY FULL"
        yield BETWEEN
        yield f"ALTER TABLE {t.home}.{leaf} REPLICA IDENTITY DEFAULT"


def _one(t: AlteredTable) -> str:
    return t.random.choice(list(t.leaves)) if t.leaves else ""


KINDS: tuple[Kind, ...] = (
    partition_created,
    unlogged_partition_created,
    partition_unlogged,
    partition_unlogged_for_a_while,
    partition_logged,
    partition_detached,
    partition_detached_and_attached,
    table_attached,
    partition_truncated,
    partition_dropped,
    partition_comes_and_goes,
    partition_of_other_identity_for_a_while,
)
