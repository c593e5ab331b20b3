"""The demo's source: a small shop, and somebody who keeps buying, changing and cancelling while it is captured.

`create_tables` makes the tables, still empty; `python -m sandbox.demo.shop <conninfo>` does that, and then writes a
round every twenty seconds, for as long as it runs. In the demo `Shop.open` writes the 61,000 rows that are there before
anybody captures them, `Shop.trade` some 40,000 more in rounds. All of them do what change data capture goes wrong on:
updates that leave a large text untouched, a key change of such a row, deletes that cascade, a rolled-back transaction,
a truncate.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import psycopg

TABLES = (
    *("shop.customers", "shop.products", "shop.orders", "shop.order_lines", "shop.shipments", "shop.carts"),
    "shop.audit_log",
)
SHOWN_ORDER = 1  # its history is printed at the end
ROUNDS = 20
OPENING_ROUNDS = 11  # done before the shop is captured
EVERY_S = 20.0  # a round of a shop that stays open

_TABLES_SQL = """
CREATE SCHEMA shop;
CREATE TYPE shop.order_status AS ENUM ('placed', 'paid', 'shipped', 'delivered', 'cancelled');
CREATE TABLE shop.customers (
    id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL, country char(2) NOT NULL, born date,
    credit numeric(12,2) NOT NULL DEFAULT 0, newsletter boolean NOT NULL, created_at timestamptz NOT NULL
);
CREATE TABLE shop.products (
    sku text PRIMARY KEY, name text NOT NULL, price numeric(10,2) NOT NULL, weight_kg double precision, tags text[],
    description text NOT NULL  -- large: PostgreSQL does not send it when a change leaves it untouched
);
ALTER TABLE shop.products ALTER description SET STORAGE EXTERNAL;
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL, status shop.order_status NOT NULL,
    placed_at timestamptz NOT NULL, total numeric(12,2) NOT NULL, note text
);
CREATE TABLE shop.order_lines (
    order_id bigint REFERENCES shop.orders ON DELETE CASCADE, line_no smallint, sku text NOT NULL,
    quantity integer NOT NULL, price numeric(10,2) NOT NULL, PRIMARY KEY (order_id, line_no)
);
CREATE TYPE shop.carrier AS ENUM ('post', 'courier', 'freight', 'pick up');
CREATE TYPE shop.shipment_state AS ENUM ('packed', 'on its way', 'delivered', 'returned');
CREATE TABLE shop.shipments (  -- as wide as tables in the field are
    id uuid PRIMARY KEY, order_id bigint NOT NULL, carrier shop.carrier NOT NULL, state shop.shipment_state NOT NULL,
    tracking_no varchar(40), service char(3) NOT NULL, parcels smallint NOT NULL, weight_kg numeric(8,3) NOT NULL,
    volume_l real, width_cm double precision, height_cm double precision, depth_cm double precision,
    insured boolean NOT NULL, insured_value numeric(12,2), duty numeric, currency char(3) NOT NULL,
    recipient text NOT NULL, street text NOT NULL, house_no text, postal_code text NOT NULL, city text NOT NULL,
    country char(2) NOT NULL, phone text, email text, instructions text,
    address jsonb NOT NULL, customs json, events jsonb NOT NULL, attributes jsonb,
    skus text[] NOT NULL, quantities integer[] NOT NULL, prices numeric(10,2)[] NOT NULL, scanned_at timestamptz[],
    scanner inet, depot cidr, gateway macaddr, promised date, pick_up time, transit interval,
    label bytea NOT NULL  -- large, and left untouched by all that happens to a shipment
);
ALTER TABLE shop.shipments ALTER label SET STORAGE EXTERNAL;
CREATE TABLE shop.carts (
    session uuid PRIMARY KEY, customer_id bigint, skus text[] NOT NULL, seen_at timestamp NOT NULL
);
CREATE TABLE shop.audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL, action text NOT NULL,
    details jsonb NOT NULL
);
"""

_OPENING = {
    "customers": """
        INSERT INTO shop.customers
        SELECT i, 'Customer ' || i, 'c' || i || '@example.com', (ARRAY['DE','FR','IT','PL','JP'])[1 + i % 5],
               date '1950-01-01' + (i * 7 % 18000), (i % 1000) / 10.0, i % 3 = 0, now() - i * interval '1 minute'
        FROM generate_series(1, 8000) i""",
    "products": """
        INSERT INTO shop.products
        SELECT 'P-' || lpad(i::text, 4, '0'), 'Product ' || i, 1 + i * 37 % 900 / 10.0, nullif(i % 11, 0) * 0.3,
               ARRAY['tag' || i % 7, 'tag' || i % 13],
               (SELECT string_agg(md5(i || ' ' || part), ' ') FROM generate_series(1, 300) part)
        FROM generate_series(1, 400) i""",
}

# Per round; %(first)s and %(last)s are the round's order ids, %(n)s its number from 1.
_ROUND = {
    "orders": """
        INSERT INTO shop.orders
        SELECT i, 1 + i * 7919 %% 8000, 'placed', now(), 0, CASE WHEN i %% 10 = 0 THEN 'At the door, no. ' || i END
        FROM generate_series(%(first)s::int, %(last)s) i""",
    "order lines": """
        INSERT INTO shop.order_lines
        SELECT i, line, 'P-' || lpad((1 + (i * 31 + line * 17) %% 400)::text, 4, '0'), 1 + (i + line) %% 5,
               1 + (i + line) %% 90
        FROM generate_series(%(first)s::int, %(last)s) i, generate_series(1, 1 + (i %% 4)::int) line""",
    "audit": """
        INSERT INTO shop.audit_log (at, action, details)
        SELECT now(), 'order placed', jsonb_build_object('order', i, 'round', %(n)s::int)
        FROM generate_series(%(first)s::int, %(last)s) i""",
    "carts": """
        INSERT INTO shop.carts
        SELECT gen_random_uuid(), i, ARRAY['P-' || lpad((i %% 400 + 1)::text, 4, '0')], now() AT TIME ZONE 'UTC'
        FROM generate_series(%(first)s::int, %(first)s + 199) i""",
    "shipments": """
        INSERT INTO shop.shipments
        SELECT md5(i::text)::uuid, i, (enum_range(NULL::shop.carrier))[1 + i / 10 %% 4], 'packed',
               CASE WHEN i %% 20 = 0 THEN 'TM' || lpad(i::text, 10, '0') END, (ARRAY['STD','EXP','BLK'])[1 + i %% 3],
               1 + i %% 3, (i %% 40000) / 1000.0, (i %% 77) / 7.0::real, i %% 60 + 0.5, i %% 40 / 3.0, 'NaN',
               i %% 3 = 0, nullif(i %% 5, 0) * 100.25, i * 0.000000001, (ARRAY['EUR','JPY','PLN'])[1 + i %% 3],
               'Customer ' || i, 'Long Street', nullif(i %% 99, 0)::text, lpad((i %% 99999)::text, 5, '0'),
               (ARRAY['Köln','Łódź','大阪'])[1 + i %% 3], (ARRAY['DE','PL','JP'])[1 + i %% 3], NULL,
               'c' || i || '@example.com', CASE WHEN i %% 30 = 0 THEN E'Ring twice,\nthen wait' END,
               jsonb_build_object('lines', ARRAY['Long Street ' || i, NULL], 'geo', ARRAY[50.94, 6.96]),
               json_build_object('hs', '6109.10', 'value', i %% 90), '[]', NULL,
               ARRAY['P-' || lpad((i %% 400 + 1)::text, 4, '0'), 'a "quoted, one"'], ARRAY[1, NULL, i %% 7],
               ARRAY[i %% 90 + 0.99, 0], NULL, inet '10.0.0.0' + i, '10.1.0.0/16', '08:00:2b:01:02:03',
               date '2024-01-01' + (i %% 300)::int, time '08:00' + i %% 600 * interval '1 minute',
               interval '1 mon 3 days' + i %% 24 * interval '1 hour',
               (SELECT string_agg(sha256((i || ' ' || part)::text::bytea), '') FROM generate_series(1, 100) part)
        FROM generate_series(%(first)s::bigint, %(last)s, 10) i""",
    "shipments on their way, the large label left untouched": """
        UPDATE shop.shipments
        SET state = CASE state WHEN 'packed' THEN 'on its way' ELSE 'delivered' END::shop.shipment_state,
            events = events || jsonb_build_object('round', %(n)s::int), scanned_at = scanned_at || now()
        WHERE order_id BETWEEN %(first)s - 2000 AND %(first)s - 1""",
    "totals": """
        UPDATE shop.orders o
        SET total = (SELECT sum(quantity * price) FROM shop.order_lines l WHERE l.order_id = o.id)
        WHERE id BETWEEN %(first)s AND %(last)s AND id %% 2 = 1""",
    "payments": """
        UPDATE shop.orders SET status = 'paid' WHERE status = 'placed' AND id %% 3 = 1 AND id < %(first)s""",
    "credits": """
        UPDATE shop.customers SET credit = credit + 1.25, newsletter = NOT newsletter WHERE id %% 80 = %(n)s""",
    "prices, the large text left untouched": """
        UPDATE shop.products SET price = price + 0.10 WHERE hashtext(sku) %% 8 = %(n)s %% 8""",
    "new descriptions": """
        UPDATE shop.products SET description = reverse(description) WHERE hashtext(sku) %% 97 = %(n)s""",
    "cancelled orders with their lines": """
        DELETE FROM shop.orders WHERE id %% 41 = 7 AND id BETWEEN %(first)s - 1000 AND %(first)s - 1""",
}


# What the owner of the tables says once where the role of the capture owns nothing (`manage_publication: false`).
_PUBLICATION_SQL = """
CREATE PUBLICATION tidemark_shop FOR TABLE ONLY {}
WITH (
    publish = 'insert, update, delete, truncate', publish_via_partition_root = true, publish_generated_columns = stored
)
"""


def create_tables(source: str) -> None:
    """Create the shop's tables unless they are there."""
    with psycopg.connect(source) as connection:
        if connection.execute("SELECT to_regnamespace('shop')").fetchone() == (None,):
            connection.execute(_TABLES_SQL)


def create_publication(source: str) -> None:
    """Publish all of them unless that was done."""
    with psycopg.connect(source) as connection:
        if connection.execute("SELECT FROM pg_publication WHERE pubname = 'tidemark_shop'").fetchone() is None:
            connection.execute(_PUBLICATION_SQL.format(", ONLY ".join(TABLES)).encode())


@dataclass
class Shop:
    """`changed` counts the rows that committed statements wrote, by what they did."""

    source: str
    changed: Counter[str] = field(default_factory=Counter)

    def open(self) -> None:
        """Do what happened before anybody looked."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            for kind, statement in _OPENING.items():
                self._do(connection, kind, statement)
            for number in range(1, OPENING_ROUNDS + 1):
                self._round(connection, number)

    def trade(self, seconds: float) -> None:
        """Do the other rounds, spread evenly over some seconds."""
        started, rounds = time.monotonic(), ROUNDS - OPENING_ROUNDS
        with psycopg.connect(self.source, autocommit=True) as connection:
            for round_number in range(1, rounds + 1):
                self._round(connection, OPENING_ROUNDS + round_number)
                time.sleep(max(0.0, started + seconds * round_number / rounds - time.monotonic()))

    def stay_open(self, every_s: float) -> None:
        """Do round after round, for ever; somebody who was stopped goes on where the orders end."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            with connection.transaction():
                if connection.execute("SELECT FROM shop.customers LIMIT 1").fetchone() is None:
                    for kind, statement in _OPENING.items():
                        self._do(connection, kind, statement)
            ((last,),) = connection.execute("SELECT coalesce(max(id), 0) FROM shop.orders").fetchall()
            for number in itertools.count(int(str(last)) // 1000 + 1):
                self._round(connection, number)
                time.sleep(every_s)

    def _round(self, connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
        facts = {"n": number, "first": (number - 1) * 1000 + 1, "last": number * 1000}
        with connection.transaction():  # an order, its lines and its trace belong together
            for kind in ("orders", "order lines", "shipments", "audit"):
                self._do(connection, kind, _ROUND[kind], **facts)
        for kind in (
            "carts",
            "totals",
            "payments",
            "credits",
            "shipments on their way, the large label left untouched",
        ):
            self._do(connection, kind, _ROUND[kind], **facts)
        with connection.transaction():
            for kind in ("prices, the large text left untouched", "new descriptions"):
                self._do(connection, kind, _ROUND[kind], **facts)
            self._regret(connection, "DELETE FROM shop.products WHERE sku < 'P-0100'")
        if number % 4 == 0:
            self._regret(connection, "UPDATE shop.orders SET status = 'cancelled', total = -1")
            self._do(
                connection, "cancelled orders with their lines", _ROUND["cancelled orders with their lines"], **facts
            )
        if number % 5 == 0:
            self._move_keys(connection, number)
        if number == ROUNDS * 3 // 4:
            connection.execute("TRUNCATE shop.carts")
            self.changed["carts truncated"] += 1
        self._shown_order(connection, number)

    def _do(self, connection: psycopg.Connection[tuple[object, ...]], kind: str, statement: str, **facts: int) -> None:
        self.changed[kind] += connection.execute(statement, facts or None).rowcount

    def _regret(self, connection: psycopg.Connection[tuple[object, ...]], statement: str) -> None:
        """A transaction, or inside of one a savepoint, that is rolled back."""
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
            self.changed["statements rolled back"] += 1

    def _move_keys(self, connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
        """Rename products: the key changes, the large text is left untouched and is sent with neither row."""
        statement = "UPDATE shop.products SET sku = sku || '-B' WHERE sku = ANY(%s)"
        skus = [f"P-{number * 10 + i:04}" for i in range(3)]
        self.changed["product numbers changed"] += connection.execute(statement, (skus,)).rowcount

    def _shown_order(self, connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
        changes = {
            OPENING_ROUNDS - 1: "status = 'paid', note = 'paid by card'",
            OPENING_ROUNDS + 6: "status = 'shipped'",
            OPENING_ROUNDS + 8: "status = 'delivered', note = NULL",
        }
        if number in changes:
            connection.execute(f"UPDATE shop.orders SET {changes[number]} WHERE id = {SHOWN_ORDER}")
            self.changed["shown order"] += 1


def is_at_work(source: str) -> bool:
    """Whether it has sold anything in the last rounds."""
    query = "SELECT max(placed_at) > now() - make_interval(secs => %s) FROM shop.orders"
    with psycopg.connect(source) as connection:
        return connection.execute(query, (6 * EVERY_S,)).fetchone() == (True,)


if __name__ == "__main__":
    if "--at-work" in sys.argv:
        sys.exit(0 if is_at_work(sys.argv[1]) else 1)
    create_tables(sys.argv[1])
    if "--publication" in sys.argv:
        create_publication(sys.argv[1])
    Shop(sys.argv[1]).stay_open(EVERY_S)
