"""A row filter gives the rows that PostgreSQL's own WHERE gives, and runs nothing but PostgreSQL's own operators."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support.pipeline import Pipeline
from tests.support.thorough import thorough
from tidemark.backfill.chunk_reading import only_table
from tidemark.config import TableRule
from tidemark.errors import ReadRefused, RowFilterInvalid
from tidemark.names import TableName
from tidemark.source.catalogue import catalog
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.source.rows import row_filter

TABLE = """
    CREATE TYPE public.mood AS ENUM ('low', 'high');
    CREATE SCHEMA other;
    CREATE TYPE other.mood AS ENUM ('low', 'high');
    CREATE TYPE public.odd AS RANGE (subtype = int4);
    CREATE TYPE public.two AS (a text, b text);
    CREATE DOMAIN public.amount AS numeric(12,2) CHECK (value >= 0);
    CREATE DOMAIN public.label AS varchar(20);
    CREATE DOMAIN public.tagged AS public.label;
    CREATE DOMAIN public.feeling AS public.mood;
    CREATE DOMAIN public.list AS int[];
    CREATE TABLE public.orders (
        id bigint PRIMARY KEY, small smallint, n int, price numeric(10,2), f float8, r real, money money, oid oid,
        note text, code varchar(10), fixed char(5), kind "char", sysname name, how public.mood, mood public.feeling,
        other other.mood, total public.amount, tag public.tagged, at timestamp, zoned timestamptz, day date, clock time,
        span interval, recent timestamptz, ok bool, doc jsonb, raw json, tags text[], listed public.list, address inet,
        net cidr, mac macaddr, key uuid, body bytea, bits bit(4), wide varbit, ages int4range, place point,
        mail public.odd, whole public.two, english text COLLATE "C", other_english text COLLATE "POSIX",
        "Odd ""name" text, secret text, pair point[]);
    INSERT INTO public.orders SELECT i, i % 7, i % 11, i * 1.5, i / 3.0, i / 4.0, i, i % 13, 'note ' || i % 5,
        'c' || i % 4, 'f' || i % 3, 'k', 's' || i % 3, m::public.mood, m::public.mood, m::other.mood, i, 'tag' || i % 3,
        '2026-01-01'::timestamp + i * interval '1 hour', '2026-01-01Z'::timestamptz + i * interval '1 hour',
        '2026-01-01'::date + i, '00:00'::time + i * interval '1 minute', i * interval '1 day',
        now() - i * interval '1 minute', CASE i % 3 WHEN 0 THEN true WHEN 1 THEN false END,
        jsonb_build_object('a', i, 'b', jsonb_build_array(i)), '{}', ARRAY['t' || i % 3, 'all'], ARRAY[i, i + 1],
        '10.0.0.0'::inet + i, '10.0.0.0/8', '08:00:2b:01:02:03', md5(i::text)::uuid, decode(md5(i::text), 'hex'),
        (i % 16)::bit(4), (i % 16)::bit(4), int4range(i, i + 5), point(i, i), NULL, NULL, 'a', 'a',
        CASE WHEN i % 2 = 0 THEN 'odd' END, 's' || i, NULL
      FROM generate_series(1, 100) AS i, LATERAL (SELECT CASE i % 2 WHEN 0 THEN 'low' ELSE 'high' END) AS of (m);
"""

NOW = datetime(2026, 11, 24, tzinfo=UTC)

# Of each column, literals of its type as a filter may write them.
VALUES = {
    "id": ["5", "'7'", "50.5", "-1", "3000000000"],
    "small": ["3", "'2'", "70000", "2.5", "+4"],
    "n": ["3", "'10'", "1e1", "n", "small", "id"],
    "price": ["10", "10.5", "'15.00'", "total", "n"],
    "f": ["1", "2.5", "'3.5'", "r", "price"],
    "r": ["0.25", "3", "'2.5'", "f", "n"],
    "note": ["'note 1'", "'o''clock'", "code", "tag"],
    "code": ["'c1'", "'c2'", "note"],
    "fixed": ["'f1'", "'f1  '"],
    "kind": ["'k'"],
    "how": ["'low'", "'high'"],
    "total": ["7", "'7.00'", "7.5", "small"],
    "tag": ["'tag1'", "'tag2'"],
    "at": ["'2026-01-02'", "now()", "zoned", "day", "current_date - interval '1 day'"],
    "zoned": ["'2026-01-02 03:00+01'", "now() - interval '300 days'", "at"],
    "recent": ["now() - INTERVAL '50 minutes'", "now()", "current_date"],
    "day": ["'2026-01-05'", "current_date", "at", "now()"],
    "clock": ["'00:30'"],
    "span": ["'5 days'"],
    "ok": ["true", "FALSE", "'yes'"],
    "address": ["'10.0.0.50'", "net"],
    "key": ["'a0000000-0000-0000-0000-000000000000'"],
    "bits": ["'0101'"],
    '"Odd ""name"': ["'odd'", "note"],
}

# One a line: what the grammar has, with every type that it compares.
TAKEN = """
    id > 5
    id = 5 AND n < 7 OR NOT ok
    NOT id = 5 AND NOT (n < 7 OR ok)
    not not ok
    ((id > 5))
    orders.id >= 5
    public.orders.id <> 5 and ORDERS.N != 3
    "id" > 5 AND "orders"."n" < 7
    id>-5 AND n<>-3 AND id>=+5 AND id<= - 3
    5 < id AND 7 >= n
    small = 3
    small = 70000 OR n = 3000000000 OR id = 3000000000000000000000
    small > n AND n <= id AND small < id
    id = '5' AND small = '3'
    '5' = id
    id > 5.5 AND small < 2.5 AND n = 3.0
    id BETWEEN 2.5 AND 7
    price > 10
    price > 10.5 AND price < 1e3 AND price >= .5 AND price <> 5.
    price = '10.50'
    price = n OR n < price
    f > 1 AND r < 2.5 AND f > '1.5'
    f > price OR f < n OR r < small OR r = f
    r = 0.25 OR r = 0.1 OR f = 0.1
    money > '5' AND oid = 5 AND oid <> 4294967295
    note = 'note 1'
    note = 'o''clock' OR note = 'a\\b'
    note LIKE 'note%' AND note NOT LIKE '%3'
    note ILIKE 'NOTE%' AND note NOT ILIKE 'X%'
    note LIKE 'n!%' ESCAPE '!' OR note LIKE 'note!_1' ESCAPE '!' OR note LIKE 'note_1' ESCAPE ''
    note LIKE 'note\\_1'
    note LIKE ''
    code LIKE 'c%' AND fixed LIKE 'f1%' AND tag LIKE 'tag%' AND sysname LIKE 's%'
    code = 'c1' AND fixed = 'f1' AND kind = 'k' AND sysname > 's1'
    fixed = 'f1   ' OR fixed > 'f'
    note > code OR code = tag
    code IN ('c1', 'c2') AND note NOT IN ('note 1', 'note 3')
    how = 'low'
    how <> 'low' AND how > 'low'
    how IN ('low', 'high') AND NOT how BETWEEN 'high' AND 'low'
    total > 5 AND total = 7 AND total > n
    tag = 'tag1' AND tag LIKE 'tag%'
    at > '2026-01-02'
    at > '2026-01-02 03:04:05.678' AND zoned <= '2026-01-03 00:00:00+02'
    zoned BETWEEN '2026-01-02' AND '2026-01-03 00:00:00+02'
    at < zoned OR day > at OR zoned >= day
    day = '2026-01-05'
    day BETWEEN '2026-01-03' AND '2026-01-07'
    day NOT BETWEEN '2026-01-03' AND '2026-01-07'
    at > now()
    zoned < now() - INTERVAL '1 day' OR day > current_date + interval '7 days'
    now() - interval '1 year' + interval '1 day' < zoned
    day >= CURRENT_DATE - interval '1 month'
    at BETWEEN now() - interval '5 years' AND now()
    now() BETWEEN zoned AND at
    recent > now() - interval '50 minutes' AND recent < current_date
    at = 'epoch' OR at < 'infinity'
    clock > '00:05' AND clock < '01:00'
    span > '5 days' AND span < '50 days'
    ok
    ok IS TRUE AND ok IS NOT FALSE AND ok IS NOT NULL
    ok = true OR ok <> FALSE OR ok = 'yes' OR ok IN (true, false)
    NOT ok
    note IS NULL OR note IS NOT NULL
    NOT note IS NULL AND doc IS NOT NULL AND tags IS NOT NULL AND place IS NOT NULL AND pair IS NULL
    id IN (1, 2, 3)
    id NOT IN (1, 2, 3)
    id IN (1, 2.5, -3, 70000000000000000000)
    n IN (1, 3000000000) OR small IN (1, 70000) OR f IN (1, 2.5) OR price IN (1, 1.5)
    n IN ('1', '2') OR n IN (1, '2')
    day IN ('2026-01-05', '2026-01-06')
    address = '10.0.0.5' OR address > '10.0.0.50'
    net = '10.0.0.0/8' AND address > net
    mac = '08:00:2b:01:02:03'
    key > 'a0000000-0000-0000-0000-000000000000'
    body > '\\x80'
    bits = '0101' AND wide = '0101'
    doc = '{"a": 5, "b": [5]}'
    "Odd ""name" = 'odd'
    "Odd ""name" IS NULL
"""

# What lies around: operators, functions, casts and a domain of others that fit better than PostgreSQL's own.
TRAPS = """
    CREATE FUNCTION public.leak(value text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(a varchar, b varchar) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(a text, b text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(a public.mood, b public.mood) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(value public.mood) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = public.leak);
    CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.leak);
    CREATE OPERATOR public.= (LEFTARG = public.mood, RIGHTARG = public.mood, FUNCTION = public.leak);
    CREATE OPERATOR public.~~ (LEFTARG = text, RIGHTARG = text, FUNCTION = public.leak);
    CREATE FUNCTION public.as_text(value public.mood) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE DOMAIN public.trap AS text;
    ALTER TABLE public.orders ADD trapped public.trap;
    UPDATE public.orders SET trapped = 'x' WHERE id < 5;
    ALTER DOMAIN public.trap ADD CHECK (public.leak(value)) NOT VALID;
"""
HARMLESS = """
    code = 'c1' OR note = 'note 1' OR tag = 'tag1' OR trapped = 'x' OR code = note
    how = 'low' OR how IN ('high', 'low')
    note LIKE 'n%' OR code NOT LIKE 'c%'
    zoned < now()
    trapped = 'x' OR trapped LIKE 'y%'
"""

# Filter -> the refusal. None of them may run anything.
REFUSED = {
    # Other tables, functions, casts, operators.
    "EXISTS (SELECT 1 FROM public.salaries)": "at character 1 is a call of exists",
    "id IN (SELECT amount FROM public.salaries)": "at character 8 is select, where a filter has a literal",
    "note = (SELECT rolpassword FROM pg_authid LIMIT 1)": "at character 8 is (, where a filter has a column, a literal",
    "salaries.amount > 5": "salaries.amount is no captured column",
    "lower(note) = 'x'": "a call of lower",
    "id = 5 AND pg_catalog.lower(note) = 'x'": "at character 12: pg_catalog.lower is no captured column",
    'note = 1 OR "lower"(note) = 1': "note (type text) is compared with a number: write the value in quotes",
    '"now"() < zoned': "now is no captured column",
    "pg_sleep(3600) IS NULL": "a call of pg_sleep",
    "set_config('search_path', note, false) IS NULL": "a call of set_config",
    "pg_read_file('/etc/passwd') = 'x'": "a call of pg_read_file",
    "nextval('public.numbers') > 0": "a call of nextval",
    "random() < 0.5": "a call of random",
    "now(1) < zoned": "at character 5 is a number, where a filter has )",
    "at < CURRENT_TIMESTAMP": "current_timestamp is no captured column",
    "note = CURRENT_USER": "current_user is no captured column",
    "'public.salaries'::regclass = 1": "at character 18 is ':', which is no part of a filter",
    "CAST(note AS regrole) IS NULL": "a call of cast",
    "note OPERATOR(public.===) 'x'": "at character 6 is operator, where a filter has = <> < <= > >=, BETWEEN",
    "note === 'x'": "at character 7 is =, where a filter has a column, a literal",
    "note ~ 'x'": "at character 6 is '~'",
    "note COLLATE \"C\" = 'x'": "at character 6 is collate",
    "id + 1 = 5": "at character 4 is +",
    "id = 5 + 1": "at character 8 is +, where a filter has AND, OR or the end",
    "note || code = 'x'": "'|'",
    "-id < 5": "at character 2 is id, where a filter has a number",
    "id = - -5": "at character 8 is -, where a filter has a number",
    "day > now() + span": "at character 15 is span, where a filter has INTERVAL",
    "day > now() + interval span": "is span, where a filter has a text in quotes",
    "day > current_date - 7": "at character 22 is a number, where a filter has INTERVAL",
    "at + interval '1 day' > now()": "at character 4 is +",
    "day = DATE 'yesterday'": "at character 7: date is no captured column",
    "tags[1] = 't1'": "'['",
    "tags = '{t1,all}'": "tags (type _text) fits IS NULL alone",
    "doc ->> 'a' = '5'": "at character 5 is -",
    "id = ANY (numbers)": "a call of any",
    "(id, n) = (1, 2)": "at character 4 is ,",
    "CASE WHEN ok THEN ok END": "case is no captured column",
    "COALESCE(n, 0) = 3": "a call of coalesce",
    "n IS DISTINCT FROM 3": "at character 6 is distinct, where a filter has NULL",
    "note IS TRUE": "is true, where a filter has NULL",
    "id BETWEEN SYMMETRIC 1 AND 2": "at character 12: symmetric is no captured column",
    "note SIMILAR TO 'x'": "at character 6 is similar",
    # What means something else every day, or nothing.
    "at < 'now'": "write now() or current_date",
    "day IN ('2026-01-01', ' TODAY ')": "write now() or current_date",
    "clock > 'now'": "write now() or current_date",
    "note = NULL": "at character 8 is null, where a filter has",
    "id NOT IN (1, NULL)": "at character 15 is null, where a filter has a literal",
    "1 = 1": "one side of a comparison has to be a column",
    "now() > '2026-01-01'": "one side of a comparison has to be a column",
    "true": "at character 5 is the end",
    "id": "at character 3 is the end, where a filter has = <>",
    "id NOT = 5": "at character 8 is =, where a filter has BETWEEN, IN or LIKE",
    "5 IS NULL": "at character 3 is is",
    "ok NOT": "at character 7 is the end",
    "": "at character 1 is the end, where a filter has a column, a literal, now() or current_date",
    "id IN ()": "at character 8 is ), where a filter has a literal",
    "id IN (n, 1)": "at character 8 is n, where a filter has a literal",
    "1 IN (1)": "one side",
    # Types that do not fit.
    "note = 5": "note (type text) is compared with a number: write the value in quotes",
    "day > 5": "day (type date) is compared with a number",
    "money > 5": "money (type money) is compared with a number",
    "oid = 5.5": "oid (type oid) is compared with a number",
    "n = true": "n (type int4) is compared with a boolean",
    "ok = 1": "ok (type bool) is compared with a number",
    "id = note": "a filter does not compare id (type int8) with note (type text)",
    "fixed = note": "a filter does not compare fixed (type bpchar) with note (type text)",
    "how = note": "a filter does not compare how (type mood) with note (type text)",
    "how = other": "a filter does not compare how (type mood) with other (type mood)",
    "clock < now()": "a filter does not compare clock (type time) with a timestamptz",
    "id LIKE '5%'": "LIKE needs a column of a text type, and id (type int8) is none",
    "how LIKE 'l%'": "LIKE needs a column of a text type",
    "note LIKE code": "at character 11 is code, where a filter has a text in quotes",
    "'x' LIKE 'x'": "LIKE needs a column of a text type, and a text is none",
    "mail = 'x'": "mail (type odd) fits IS NULL alone",
    "raw = '{}'": "raw (type json) fits IS NULL alone",
    "place = '(1,1)'": "place (type point) fits IS NULL alone",
    "ages = '[1,2)'": "ages (type int4range) fits IS NULL alone",
    "listed = '{1}'": "listed (type _int4) fits IS NULL alone",
    "whole = '(a,b)'": "whole (type two) fits IS NULL alone",
    # Columns that are not captured in clear, system columns, the whole row.
    "secret LIKE 's1%'": "secret is masked",
    "secret IS NULL": "secret is masked",
    "hidden = 'x'": "hidden is no captured column",
    "ctid = '(0,1)'": "ctid is no captured column",
    "tableoid = 1259": "tableoid is no captured column",
    "orders IS NULL": "orders is no captured column",
    "orders.* IS NULL": "at character 8 is '*'",
    "(orders).secret = 's1'": "orders is no captured column",
    "other.orders.id = 1": "other.orders.id is no captured column",
    "a.public.orders.id = 1": "no captured column",
    # More than a condition.
    "ok; DROP TABLE public.orders": "at character 3 is ';', which is no part of a filter",
    "ok) OR (ok": "at character 3 is ), where a filter has AND, OR or the end",
    "(ok": "at character 4 is the end, where a filter has AND, OR or )",
    "ok UNION ALL SELECT 1": "at character 4 is union",
    "ok ORDER BY id": "is order",
    "id = $1": "'$'",
    "id = %s": "'%'",
    "id = :id": "':'",
    "id > 5 -- ) OR true": "at character 8 is -, where a filter has AND, OR or the end",
    "id > 5 /* x */": "at character 8 is '/'",
    "id > 5\n  AND #": "at line 2, character 7 is '#'",
    "id > 5abc": "at character 7 is abc",
    "id > 0x1F": "at character 7 is x1f",
    "id > 1_000": "at character 7 is _000",
    "note = 'x' 'y'": "at character 12 is a text in quotes",
    "note = E'x\\' OR true --'": "at character 24 is a quote that does not end",
    "note = E'x'": "e is no captured column",
    "note = $a$x' OR true --$a$": "'$'",
    "note = U&'\\0041'": "'&'",
    'U&"\\0063tid" IS NULL': "'&'",
    "note = 'x": "at character 8 is a quote that does not end",
    '"" = 5': "at character 1 is a quote that does not end, or is empty",
    "note = 'x\0'": "at character 10 is a NUL or half a character",
    "note = '\ud800'": "at character 9 is a NUL or half a character",
    "id\u00a0= 5": "id\u00a0 is no captured column",
    "id \uff1d 5": "at character 4 is",
    # What only costs.
    "NOT " * 60 + "ok": "nested deeper than 50 levels",
    "(" * 60 + "ok" + ")" * 60: "nested deeper than 50 levels",
    "(" * 4000: "nested deeper than 50 levels",
    "id = 1 OR " * 1200 + "ok": "characters; 10000 are allowed",
}
# What PostgreSQL refuses while the filter is tried, or at a row.
FAILING = {
    "id = 'five'": "SQLSTATE 22P02",
    "id > '99999999999999999999'": "SQLSTATE 22003",
    "price > " + "9" * 5000: "",
    "f > 1e999": "SQLSTATE 22003",
    "how = 'lower'": "SQLSTATE 22P02",
    "at > 'Monday last'": "SQLSTATE 22007",
    "at > '2026-02-30'": "SQLSTATE 22008",
    "day > current_date - interval 'a day'": "SQLSTATE 22007",
    "note LIKE 'x' ESCAPE 'ab'": "SQLSTATE 22025",
    "note LIKE 'n%\\'": "SQLSTATE 22025",
    "english = other_english": "SQLSTATE 42P22",
}


def filters(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def a_table(captured: Pipeline, *more: str) -> CapturedTable:
    captured.execute(TABLE, *more, "ALTER TABLE public.orders ADD hidden text", "ANALYZE public.orders")
    captured.with_tables(TableRule("public.orders", leave_out=("hidden",), mask={"secret": "null"}))
    captured.capture()
    captured.connection.execute("SET search_path = pg_catalog; SET TimeZone = 'UTC'")
    alone = only_table(captured.config, TableName("public", "orders"))
    assert alone is not None
    (table,) = catalog.captured_tables(captured.connection, alone)
    return table


def rows(conn: psycopg.Connection[Any], condition: sql.Composable) -> list[tuple[Any, ...]]:
    return conn.execute(sql.SQL("SELECT id FROM public.orders WHERE\n{}\nORDER BY id").format(condition)).fetchall()


def rows_or_error(conn: psycopg.Connection[Any], condition: sql.Composable) -> list[tuple[Any, ...]] | str:
    try:
        with conn.transaction():
            return rows(conn, condition)
    except psycopg.errors.DataError as failed:
        return str(failed.sqlstate)


def differing(conn: psycopg.Connection[Any], table: CapturedTable, texts: list[str]) -> dict[str, Any]:
    """The filters with other rows than PostgreSQL's own WHERE; both run in one transaction, so now() is the same."""
    found = {}
    with conn.transaction():
        row = conn.execute("SELECT now()").fetchone()
        assert row is not None
        moment: datetime = row[0]
        for text in texts:
            written = row_filter.condition(conn, table, text, moment)
            ours, own = rows_or_error(conn, written), rows_or_error(conn, sql.SQL(text))
            if ours != own:
                found[text] = ours, own
    return found


def random_filter(rng: random.Random, depth: int = 3) -> str:
    kind = rng.random()
    if depth and kind < 0.25:
        return f"NOT {random_filter(rng, 0)}" if kind < 0.1 else f"({random_filter(rng, depth - 1)})"
    if depth and kind < 0.7:
        parts = [random_filter(rng, depth - 1) for _ in range(rng.randint(2, 4))]
        return "".join(part + rng.choice((" AND ", " OR ", "\nand not ")) for part in parts[1:]) + parts[0]
    column, values = rng.choice(list(VALUES.items()))
    literals = [value for value in values if value[0] in "'+-0123456789" or value.lower() in ("true", "false")]
    literals = literals or ["'epoch'"]
    no = rng.choice(("", "", "NOT "))
    match rng.randrange(6):
        case 0:
            return f"{column} {no}IN ({', '.join(rng.choices(literals, k=rng.randint(1, 4)))})"
        case 1:
            return f"{column} {no}BETWEEN {rng.choice(values)} AND {rng.choice(values)}"
        case 2:
            return f"{column} IS {no}NULL"
        case 3 if column in ("note", "code", "fixed", "tag", '"Odd ""name"'):
            pattern = rng.choice(("note%", "%1", "_1", "c_", "O%", "f1", "%!%", ""))
            escape = rng.choice(("", "", " ESCAPE '!'"))
            return f"{column} {no}{rng.choice(('LIKE', 'ilike'))} '{pattern if not escape else pattern + '!!'}'{escape}"
        case 4 if column == "ok":
            return rng.choice(("ok", "NOT ok", "ok IS TRUE", "ok IS NOT FALSE"))
    operator = rng.choice(("=", "<>", "!= ", "<", "<=", ">", ">="))
    value = rng.choice(values)
    return f"{column}{operator}{value}" if rng.random() < 0.7 else f"{value} {operator} {column}"


def test_each_part_of_the_grammar_gives_the_rows_of_postgresqls_own_where(captured_on_each: Pipeline) -> None:
    table = a_table(captured_on_each)
    assert differing(captured_on_each.connection, table, filters(TAKEN)) == {}


def test_a_domain_over_an_enum_is_compared_as_the_enum(captured: Pipeline) -> None:
    """PostgreSQL's own WHERE has no operator for it without a cast."""
    table, conn = a_table(captured), captured.connection
    assert rows(conn, row_filter.condition(conn, table, "mood = 'high' AND how = mood", NOW)) == [
        (i,) for i in range(1, 101, 2)
    ]


@pytest.mark.parametrize("count", [300, *thorough(1000)])
def test_random_filters_give_the_rows_of_postgresqls_own_where(captured: Pipeline, count: int) -> None:
    table = a_table(captured)
    rng = random.Random(20261124)
    texts = [random_filter(rng) for _ in range(count)]
    assert differing(captured.connection, table, texts) == {}
    selected = [len(rows(captured.connection, sql.SQL(text))) for text in texts]
    assert sum(0 < some < 100 for some in selected) > 0.4 * count, "most of them select some rows and not all"


def test_whatever_of_random_tokens_is_taken_means_what_postgresql_makes_of_it(captured: Pipeline) -> None:
    table = a_table(captured)
    rng = random.Random(7)
    tokens = (
        "id n note ok ( ) , . = <> < - + ' 5 2.5 'x' AND OR NOT IN BETWEEN LIKE IS NULL TRUE now() interval -- /* ;"
    )
    types = catalog.read_types(captured.connection)
    taken = []
    for _ in range(20_000):
        text = " ".join(rng.choices(tokens.split(), k=rng.randint(1, 7)))
        try:
            row_filter.condition_of(table, types, text, NOW)
        except RowFilterInvalid:
            continue
        taken.append(text)
    assert len(taken) > 50
    assert differing(captured.connection, table, sorted(set(taken))) == {}


def test_what_is_not_in_the_grammar_is_refused_with_its_place(captured: Pipeline) -> None:
    table = a_table(captured)
    types = catalog.read_types(captured.connection)
    other = {}
    for text, expected in REFUSED.items():
        try:
            answer = row_filter.condition_of(table, types, text, NOW).as_string(None)
        except RowFilterInvalid as refused:
            answer = str(refused.facts["detail"])
        if expected not in answer:
            other[text[:80]] = answer
    assert other == {}


def test_operators_functions_and_casts_of_others_are_not_called(captured: Pipeline) -> None:
    table = a_table(captured, TRAPS)
    conn = captured.connection
    conn.execute("SET search_path = public, pg_catalog")
    with pytest.raises(psycopg.errors.RaiseException, match="leak called"):
        rows(conn, sql.SQL("how = 'low'"))
    for text in filters(HARMLESS):
        assert rows(conn, row_filter.condition(conn, table, text, NOW)), text
    # Operators of enums are of any enum, so a cast can compete with them: an error, which calls neither.
    for cast in ("int) WITH FUNCTION public.leak", "text) WITH FUNCTION public.as_text"):
        conn.execute(sql.SQL(f"CREATE CAST (public.mood AS {cast}(public.mood) AS IMPLICIT"))
        with pytest.raises(psycopg.errors.AmbiguousFunction):
            rows(conn, row_filter.condition(conn, table, "how = 'low'", NOW))


def test_a_filter_that_fails_when_it_is_tried_is_refused_with_a_sentence(captured: Pipeline) -> None:
    a_table(captured)
    other = {}
    for text, expected in FAILING.items():
        try:
            captured.plan(tables=["public.orders"], row_filter=text, replace=True)
            answer = ""
        except RowFilterInvalid as refused:
            answer = str(refused.facts["detail"])
        if (expected not in answer) if expected else answer:
            other[text[:80]] = answer
    assert other == {}


@pytest.mark.parametrize("value", ["note 1", "s1", "4711"])
def test_no_refusal_quotes_a_value_or_a_literal(captured: Pipeline, value: str) -> None:
    a_table(captured)
    for text in (
        f"id = '{value} x'",
        f"'{value}' = 'x'",
        f"note = '{value}' '{value}'",
        f"now('{value}') IS NULL",
        f"'{value}",
        f"at < 'now {value}'",
        f"day = '{value}'",
        "note = 4711",
    ):
        with pytest.raises(RowFilterInvalid) as refused:
            captured.plan(tables=["public.orders"], row_filter=text)
        assert value not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_now_is_when_the_backfill_was_opened(captured: Pipeline) -> None:
    """A reader that comes an hour later reads the same rows; rows of the hour before are not left out."""
    a_table(captured)
    (backfill,) = captured.plan(
        tables=["public.orders"], row_filter="recent > now() - INTERVAL '30 minutes 30 seconds'"
    )
    captured.ledger_query("UPDATE tidemark.backfills SET opened_at = opened_at + interval '20 minutes' RETURNING 1")
    captured.read()
    assert sorted(row["id"] for row in captured.rows(backfill)) == list(range(1, 11))


def test_row_level_security_refuses_a_filter_rather_than_hiding_rows(captured: Pipeline) -> None:
    captured.execute(
        "CREATE TABLE public.parts (id int PRIMARY KEY)",
        "INSERT INTO public.parts SELECT generate_series(1, 30)",
        f"CREATE ROLE capturing LOGIN REPLICATION PASSWORD '{captured.connection.info.password}'",
        "GRANT SELECT ON public.parts TO capturing",
        "ALTER TABLE public.parts ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON public.parts USING (id < 3)",
    )
    captured.with_tables(TableRule("public.parts"))
    captured.capture()
    captured.source = make_conninfo(captured.source, user="capturing")
    captured.config = dataclasses.replace(captured.config, manage_publication=False)
    try:
        with pytest.raises(ReadRefused, match="row-level security"):
            captured.plan(tables=["public.parts"], row_filter="id > 0")
    finally:
        captured.execute("DROP OWNED BY capturing", "DROP ROLE capturing")


def test_rows_are_those_of_the_filter_in_every_range_and_among_chosen_keys(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.orders"], row_filter="n IN (1, 2)", chunk_rows=2, readers=1)
    assert len(captured.ranges(backfill)) > 1
    captured.read()
    assert {row["n"] for row in captured.rows(backfill)} == {1, 2}
    assert captured.one("SELECT count(*) FROM public.orders WHERE n IN (1, 2)") == len(captured.rows(backfill))
    (keys,) = captured.plan(
        tables=["public.orders"], row_filter="n = 1", mode="keys", keys=[["1"], ["2"], ["12"]], replace=True
    )
    captured.read()
    assert sorted(row["id"] for row in captured.rows(keys)) == [1, 12]


def test_a_filter_that_fails_behind_the_rows_it_was_tried_on_ends_its_backfill_with_a_sentence(
    captured: Pipeline,
) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.orders"], row_filter="note NOT LIKE 'x\\'")
    captured.execute("INSERT INTO public.orders (id, note) VALUES (200, 'x1')")
    captured.read()
    reason = captured.again(backfill).state_reason or ""
    assert "a pattern ends in its escape character (SQLSTATE 22025)" in reason
    assert "x1" not in reason


def test_a_statement_with_a_filter_ends_after_its_time(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.orders"], row_filter=f"note NOT LIKE '%{'a' * 9000}b'")
    captured.execute("UPDATE public.orders SET note = repeat('a', 20000)")
    captured.with_bounds(filter_s=1)
    captured.read()
    assert "it took too long, or somebody cancelled it (SQLSTATE 57014)" in (
        captured.again(backfill).state_reason or ""
    )
