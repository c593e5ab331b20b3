"""What the sources of the benchmarks hold, and what is done to them: tables of eight columns of ordinary types.

Inserts and most updates are in blocks, so that a source writes as an application's batches would, not in one
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import psycopg

BLOCK: Final = 10_000

KeyKind = Literal["bigint", "uuid", "text", "composite"]

COLUMNS: Final = (
    "id bigint PRIMARY KEY, customer int, name text, price numeric(10,2), weight float8, created timestamptz, "
    "active bool, note varchar(40)"
)
ROWS: Final = (
    "SELECT i, i %% 5000, 'name of ' || i, (i %% 100000) / 100.0, i * 0.37, "
    "timestamptz '2024-01-02 03:04:05+00' + i * interval '1 millisecond', i %% 2 = 0, "
    "CASE WHEN i %% 10 > 0 THEN 'a note of some length' END FROM generate_series(%s::bigint, %s) i"
)

# Keys other than `id`: what ALTER TABLE adds for it, and the key's columns. Rows lie in no order of any of them.
OTHER_KEYS: Final[Mapping[KeyKind, tuple[str, str]]] = {
    "uuid": ("ADD key uuid NOT NULL DEFAULT gen_random_uuid(), ", "key"),
    "text": ("ADD key text NOT NULL DEFAULT left('order ' || gen_random_uuid(), 30 + (12 * random())::int), ", "key"),
    "composite": ("", "customer, id"),
}


def create(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"CREATE TABLE measurements ({COLUMNS})".encode())


def fill(connection: psycopg.Connection[Any], rows: int, key: KeyKind = "bigint") -> None:
    """Create the table and insert `rows` rows. VACUUM ANALYZE makes it like an old table: all rows are visible to an
    index-only scan, and the planner has statistics. Whatever the key, `id` has a unique index."""
    create(connection)
    if key == "bigint":
        insert(connection, 0, rows)
    else:
        added, columns = OTHER_KEYS[key]
        change = f"ALTER TABLE measurements {added}DROP CONSTRAINT measurements_pkey, ADD UNIQUE (id)"
        connection.execute(change.encode())
        insert(connection, 0, rows)
        connection.execute(f"ALTER TABLE measurements ADD PRIMARY KEY ({columns})".encode())
    connection.execute("VACUUM ANALYZE measurements")


def insert(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    """Rows `first` up to and without `last`, some thousand in a transaction."""
    for start in range(first, last, BLOCK):
        connection.execute(f"INSERT INTO measurements {ROWS}".encode(), (start, min(start + BLOCK, last) - 1))


def update_all_over(connection: psycopg.Connection[Any], rows: int, of: int, seed: int) -> None:
    """`rows` different rows of the first `of`, in no order of the key, a thousand in a transaction. Multiplying by an
    odd number that shares no factor with `of` meets each row once."""
    stride = next(n for n in range(of * 5 // 8, of * 2) if _share_no_factor(n, of))
    for start in range(0, rows, 1000):
        connection.execute(
            "UPDATE measurements SET price = price + 1, note = 'changed ' || %s::text "
            "WHERE id IN (SELECT ((i + %s)::bigint * %s) %% %s FROM generate_series(%s::bigint, %s) i)",
            (seed, seed * rows, stride, of, start, min(start + 1000, rows) - 1),
        )


def _share_no_factor(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1


def mixed(connection: psycopg.Connection[Any], changes: int) -> int:
    """Workload a: of 31 changes 20 inserts, 10 updates and a delete. Returns how many they are: `changes`, if that is a
    multiple of 31."""
    inserts = changes * 20 // 31
    insert(connection, 0, inserts)
    updates, deletes = inserts // 2, inserts // 20
    for start in range(0, updates, BLOCK):
        connection.execute(
            "UPDATE measurements SET price = price + 1, note = 'changed' WHERE id BETWEEN %s AND %s",
            (start, min(start + BLOCK, updates) - 1),
        )
    connection.execute("DELETE FROM measurements WHERE id < %s", (deletes,))
    return inserts + updates + deletes


def pgbench_like(connection: psycopg.Connection[Any], transactions: int) -> int:
    """Workload b: transactions of four changes in four tables, as pgbench's; returns how many changes that is.

    They are made on the server, one commit each, since a client would take longer than what is measured.
    """
    connection.execute("CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))")
    connection.execute("CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance bigint, filler char(84))")
    connection.execute("CREATE TABLE branches (bid int PRIMARY KEY, bbalance bigint, filler char(88))")
    connection.execute("CREATE TABLE visits (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22))")
    connection.execute("ALTER TABLE visits ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
    accounts = max(1_000, min(100_000, transactions))
    connection.execute("INSERT INTO accounts SELECT i, i %% 10, 0, '' FROM generate_series(1, %s) i", (accounts,))
    connection.execute("INSERT INTO tellers SELECT i, i % 10, 0, '' FROM generate_series(1, 100) i")
    connection.execute("INSERT INTO branches SELECT i, 0, '' FROM generate_series(0, 9) i")
    connection.execute(
        "CREATE PROCEDURE visits_of(howmany int, of int) LANGUAGE plpgsql AS $$ BEGIN "
        "FOR n IN 1..howmany LOOP "
        "UPDATE accounts SET abalance = abalance + n WHERE aid = 1 + (n::bigint * 7919) % visits_of.of; "
        "UPDATE tellers SET tbalance = tbalance + n WHERE tid = 1 + n % 100; "
        "UPDATE branches SET bbalance = bbalance + n WHERE bid = n % 10; "
        "INSERT INTO visits "
        "VALUES (1 + n % 100, n % 10, 1 + (n::bigint * 7919) % visits_of.of, n, clock_timestamp(), ''); "
        "COMMIT; END LOOP; END $$"
    )
    connection.execute("SET synchronous_commit = off")
    connection.execute(f"CALL visits_of({transactions}, {accounts})".encode())
    connection.execute("RESET synchronous_commit")
    return transactions * 4 + accounts + 110


def one_transaction(connection: psycopg.Connection[Any], updates: int) -> int:
    """Workload c: as many updates in one transaction, of half as many rows that were inserted before it; returns how
    many changes that is, the inserts too."""
    rows = max(1, updates // 2)
    insert(connection, 0, rows)
    with connection.transaction():
        for _ in range(2):
            connection.execute("UPDATE measurements SET price = price + 1")
    return rows * 3


def large_values(connection: psycopg.Connection[Any], rows: int, size: int = 2_048) -> int:
    """Workload d: rows with a text of `size` bytes that does not compress; returns how many changes that is."""
    connection.execute("CREATE TABLE documents (id bigint PRIMARY KEY, customer int, body text)")
    digests = -(-size // 32)
    for start in range(0, rows, BLOCK):
        connection.execute(
            "INSERT INTO documents SELECT i, i %% 5000, left((SELECT string_agg(md5(i::text || ':' || n), '') "
            "FROM generate_series(1, %s) n), %s) FROM generate_series(%s::bigint, %s) i",
            (digests, size, start, min(start + BLOCK, rows) - 1),
        )
    return rows
