"""What the form's row filter may say, that it means what PostgreSQL makes of it, and that nothing else can run."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.pipeline import Pipeline
from tidemark.backfill import sessions
from tidemark.backfill.chunk_reading import exactly
from tidemark.config import TableRule
from tidemark.errors import RowFilterInvalid
from tidemark.names import TableName
from tidemark.source import catalog, row_filter

TABLE = """
    CREATE TYPE public.mood AS ENUM ('low', 'high');
    CREATE DOMAIN public.amount AS numeric(12,2) CHECK (value >= 0);
    CREATE DOMAIN public.label AS varchar(20);
    CREATE TABLE public.orders (
        id bigint PRIMARY KEY, small smallint, n int, price numeric(10,2), f float8, r real, note text,
        code varchar(10), fixed char(5), kind "char", how public.mood, total public.amount, tag public.label,
        at timestamp, zoned timestamptz, day date, clock time, span interval, ok bool, doc jsonb, raw json,
        tags text[], numbers int[], address inet, net cidr,
        mac macaddr, key uuid, body bytea, bits bit(4), wide varbit, period tsrange, ages int4range, place point,
        words tsvector, "Odd ""name" text, secret text, pair point[]);
    INSERT INTO public.orders SELECT i, i % 7, i % 11, i * 1.5, i / 3.0, i / 4.0, 'note ' || i % 5, 'c' || i % 4,
        'f' || i % 3, 'k', CASE i % 2 WHEN 0 THEN 'low' ELSE 'high' END::public.mood, i, 'tag' || i % 3,
        '2026-01-01'::timestamp + i * interval '1 hour', '2026-01-01Z'::timestamptz + i * interval '1 hour',
        '2026-01-01'::date + i, '00:00'::time + i * interval '1 minute', i * interval '1 day', i % 2 = 0,
        jsonb_build_object('a', i, 'b', jsonb_build_array(i)), '{}', ARRAY['t' || i % 3, 'all'], ARRAY[i, i + 1],
        '10.0.0.0'::inet + i, '10.0.0.0/8', '08:00:2b:01:02:03', md5(i::text)::uuid, decode(md5(i::text), 'hex'),
        (i % 16)::bit(4), (i % 16)::bit(4), tsrange('2026-01-01', '2026-01-02'), int4range(i, i + 5), point(i, i),
        to_tsvector('simple', 'a b'), CASE WHEN i % 2 = 0 THEN 'odd' END, 's' || i, NULL
      FROM generate_series(1, 100) AS i;
"""

# One a line. Each is taken, and calls the operators and functions that PostgreSQL itself makes of the text.
TAKEN = """
    id > 5
    id = 5 AND n < 7 OR NOT ok
    orders.id >= 5
    public.orders.id <> 5
    -id < -5
    +n = 3
    small = 3
    small = 3::bigint
    id = 3000000000
    id = '5'
    '5' = id
    price > 10
    price > 10.5 AND price < 1e3
    price = '10.50'
    f > 1 AND r < 2.5
    f > price
    n / 2 * 3 - 1 % 2 + 4 > small
    n ^ 2 > 5
    @ n = 3
    |/ f > 2
    n & 1 = 1 AND n # 3 > 0 AND n << 1 > 2
    note = 'note 1'
    note = $$note 1$$
    note = E'note\\x201'
    note = U&'note\\00201'
    note LIKE 'note%' AND note NOT LIKE '%3'
    note ILIKE 'NOTE%'
    note LIKE 'n!%' ESCAPE '!'
    note SIMILAR TO 'note (1|2)'
    note ~ '^note [12]$' AND code !~* 'C3'
    note || code = 'note 1c1'
    note || 'x' > 'note 1x'
    code = 'c1' AND fixed = 'f1' AND kind = 'k'
    code = fixed
    note = code
    code || fixed = 'c1f1'
    lower(note) = upper('note 1')
    length(code) = 2 AND char_length(fixed) = 2
    substring(note from 1 for 4) = 'note'
    substring(note, 1, 4) = 'note'
    position('1' in note) > 0
    trim(both ' ' from note) = 'note 1'
    btrim(code) = 'c1'
    overlay(note placing 'x' from 1) = 'xote 1'
    left(note, 4) = 'note' AND right(code, 1) = '1'
    replace(note, 'o', 'a') = 'nate 1'
    split_part(note, ' ', 2) = '1'
    md5(note) > 'a'
    starts_with(note, 'note')
    strpos(note, 'o') = 2
    regexp_replace(note, '[0-9]', '') = 'note '
    reverse(code) = '1c'
    translate(note, 'o', '0') = 'n0te 1'
    abs(n) = 3 AND round(price, 1) > 5 AND ceil(f) > 3 AND mod(id, 2) = 0 AND mod(n, 2) = 0
    floor(price) = 3 AND trunc(price) = 3 AND sign(n) = 1
    power(n, 2) > 10 AND sqrt(f) > 1
    how = 'low'
    how <> 'low' AND how > 'low'
    how IN ('low', 'high')
    how = ANY ('{low,high}')
    total > 5 AND total = 7
    total + 1 > 5
    tag = 'tag1' AND tag LIKE 'tag%'
    tag = note
    lower(tag) = 'tag1'
    at > '2026-01-02'
    at > timestamp '2026-01-02 03:04:05.678'
    at >= date '2026-01-02' AND day < timestamp '2026-02-01'
    zoned > '2026-01-02'
    zoned BETWEEN '2026-01-02' AND '2026-01-03 00:00:00+02'
    zoned AT TIME ZONE 'UTC' > '2026-01-03'
    at AT TIME ZONE 'Europe/Berlin' > '2026-01-03'
    day = '2026-01-05'
    day + 1 = '2026-01-05'
    day - date '2026-01-01' > 5
    day BETWEEN '2026-01-03' AND '2026-01-07'
    day BETWEEN SYMMETRIC '2026-01-07' AND '2026-01-03'
    day NOT BETWEEN '2026-01-03' AND '2026-01-07'
    at + interval '1 day' > '2026-01-05'
    at - '1 day'::interval > '2026-01-05'
    at - at = '0'
    extract(month FROM at) = 1
    extract(year FROM day) = 2026
    date_part('hour', at) > 5
    date_trunc('day', at) = '2026-01-02'
    date('2026-01-05') = day
    clock > '00:05' AND clock < time '01:00'
    span > '5 days' AND span < interval '50' day
    make_date(2026, 1, 5) < day
    age(at, '2025-01-01') > '1 year'
    (at, at) OVERLAPS (at, at)
    ok
    ok IS TRUE AND ok IS NOT FALSE AND ok IS NOT UNKNOWN
    ok = true
    NOT ok
    true
    'true'
    1 = 1
    'a' = 'a'
    NULL IS NULL
    note IS NULL OR note IS NOT NULL
    doc ->> 'a' = '5'
    doc -> 'b' -> 0 = '5'
    (doc ->> 'a')::int > 5
    doc #>> '{b,0}' = '5'
    doc @> '{"a": 5}'
    doc ? 'a'
    doc ?| ARRAY['a', 'c']
    doc = '{"a": 5, "b": [5]}'
    jsonb_typeof(doc -> 'a') = 'number'
    doc @@ '$.a > 5'
    jsonb_path_exists(doc, '$.a ? (@ > 5)')
    raw ->> 'a' IS NULL
    tags = '{t1,all}'
    tags = ARRAY['t1', 'all']
    tags @> ARRAY['t1']
    tags @> '{t1}'
    tags && '{t1,t2}'
    't1' = ANY (tags)
    5 = ANY (numbers)
    id = ANY (numbers)
    5 < ALL (numbers)
    array_length(tags, 1) = 2
    cardinality(numbers) = 2
    array_position(tags, 'all') = 2
    array_append(numbers, 3) = '{1,2,3}'
    numbers || 3 = '{1,2,3}'
    id IN (1, 2, 3)
    id NOT IN (1, 2, 3)
    id IN (1, 2.5, n)
    n IN (1, 3000000000)
    n IN ('1', '2')
    code IN ('c1', 'c2')
    note IN (code, 'note 1')
    id IN (NULL, 5)
    day IN (date '2026-01-05', '2026-01-06')
    day NOT BETWEEN SYMMETRIC '2026-01-07' AND '2026-01-03'
    note IS DISTINCT FROM NULL
    id = ANY ('{1,2}')
    id = ANY (ARRAY[1, 2])
    id = ANY ('{1,2}'::int[])
    address = '10.0.0.5'
    address << '10.0.0.0/8'
    address << net
    host(address) = '10.0.0.5'
    masklen(net) = 8
    mac = '08:00:2b:01:02:03'
    key > 'a0000000-0000-0000-0000-000000000000'
    body > '\\x80'
    octet_length(body) = 16
    encode(body, 'hex') > '8'
    get_byte(body, 0) > 100
    bits = B'0101' AND wide = '0101'
    bits & B'0001' = B'0001'
    period @> timestamp '2026-01-01 12:00'
    period @> '2026-01-01 12:00'::timestamp
    ages @> 7
    ages && '[3,8)'
    ages && int4range(3, 8)
    lower(ages) > 5 AND NOT isempty(ages)
    place <-> point(0, 0) < 10
    place <@ box '((0,0),(5,5))'
    words @@ 'a'::tsquery
    "Odd ""name" = 'odd'
    COALESCE("Odd ""name", 'none') = 'none'
    COALESCE(n, 0) = 3
    COALESCE(price, n, 0) > 3
    NULLIF(n, 3) IS NULL
    GREATEST(n, small) > 5 AND LEAST(n, 3) = 3
    GREATEST(price, n) > 5
    n IS DISTINCT FROM 3
    note IS NOT DISTINCT FROM 'note 1'
    note IS NOT DISTINCT FROM NULL
    CASE WHEN n > 5 THEN ok ELSE NOT ok END
    CASE n WHEN 3 THEN 'a' WHEN 4 THEN 'b' END = 'a'
    CASE WHEN ok THEN n ELSE price END > 5
    note COLLATE "C" < 'note 3'
    note < 'note 3' COLLATE "POSIX"
    n::text = '3'
    n::bigint = 3 AND price::int = 3 AND f::numeric(10,2) = 3.33
    note::varchar(4) = 'note'
    id::int4 = 3
    id::float8 > 5.5
    CAST(code AS text) = 'c1'
    ok::int = 1
    doc::text LIKE '%5%'
    '5'::int = n
    pg_catalog.lower(note) OPERATOR(pg_catalog.=) 'note 1'
    id > 5 -- a comment
    /* a comment */ id > 5
    hashtext(note) % 2 = 0
    bit_length(note) > 5
    width_bucket(f, 0, 100, 10) = 3
"""

# What lies around: a view of other tables, a function that leaks, an operator and a domain that call it, a slot.
TRAPS = """
    CREATE TABLE public.salaries (name text, amount int);
    INSERT INTO public.salaries VALUES ('boss', 4711);
    CREATE TABLE public.called (by text);
    CREATE FUNCTION public.leak(value text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(a text, b text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.lower(value varchar) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE FUNCTION public.leak(a varchar, b text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'leak called'; END $$;
    CREATE OPERATOR public.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = public.leak);
    CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = text, FUNCTION = public.leak);
    CREATE DOMAIN public.trap AS text CHECK (public.leak(value));
    CREATE COLLATION public.other FROM "C";
    CREATE TYPE public.two AS (a text, b text);
    CREATE CAST (varchar AS public.two) WITH INOUT AS IMPLICIT;
    CREATE SEQUENCE public.numbers;
"""

# Filter -> what the refusal says; "" where it is taken and does no harm. None of them may say or do anything else.
HOSTILE = {
    # Other tables, by subquery or by name.
    "EXISTS (SELECT 1 FROM public.salaries WHERE amount > 4000)": "a subquery",
    "id IN (SELECT amount FROM public.salaries)": "a subquery",
    "note = (SELECT rolpassword FROM pg_authid LIMIT 1)": "a subquery",
    "id = ANY (SELECT amount FROM public.salaries)": "a subquery",
    "tags = ARRAY(SELECT name FROM public.salaries)": "a subquery",
    "(TABLE public.salaries) IS NULL": "a subquery",
    "salaries.amount > 5": "no column of the table",
    "query_to_xml('SELECT * FROM public.salaries', true, true, '') IS NULL": "not immutable",
    "table_to_xml('public.salaries', true, true, '') IS NULL": "not immutable",
    # The catalogue, by what its texts say or by the error.
    "'public.salaries'::regclass = 1": "none of PostgreSQL's plain types",
    "note::regclass::text = 'x'": "none of PostgreSQL's plain types",
    "CAST(note AS regrole) IS NULL": "none of PostgreSQL's plain types",
    "note::regproc IS NOT NULL": "none of PostgreSQL's plain types",
    "id::regclass IS NULL": "none of PostgreSQL's plain types",
    "to_tsvector('english', note) @@ 'a'": "regconfig",
    "to_regclass(note) IS NULL": "not immutable",
    "has_table_privilege('postgres', 'public.salaries', 'SELECT')": "not immutable",
    "pg_typeof(note)::text = 'text'": "not immutable",
    "pg_get_userbyid(10) = 'postgres'": "not immutable",
    "current_setting('data_directory') LIKE '/%'": "not immutable",
    "pg_relation_size(1259) > 0": "not immutable",
    # What the role could do: slots, messages, files, sessions, settings.
    "pg_drop_replication_slot('{slot}') IS NULL": "not immutable",
    "pg_replication_slot_advance('{slot}', '0/0') IS NULL": "not immutable",
    "pg_create_physical_replication_slot('stolen') IS NULL": "not immutable",
    "pg_logical_emit_message(true, 'tidemark', 'x') IS NULL": "not immutable",
    "pg_logical_slot_get_changes('{slot}', NULL, NULL) IS NULL": "there is no function pg_logical_slot_get_changes",
    "set_config('extra_float_digits', '-15', false) IS NULL": "not immutable",
    "set_config('search_path', note, false) IS NULL": "not immutable",
    "pg_terminate_backend(id::int)": "not immutable",
    "pg_sleep(3600) IS NULL": "not immutable",
    "pg_read_file('/etc/passwd') = 'x'": "not immutable",
    "pg_ls_dir('/') = 'x'": "not immutable",
    "lo_create(0) > 0": "not immutable",
    "lo_import('/etc/passwd') > 0": "not immutable",
    "nextval('public.numbers') > 0": "not immutable",
    "pg_advisory_lock(1) IS NULL": "not immutable",
    "pg_notify('a', note) IS NULL": "not immutable",
    "txid_current() > 0": "not immutable",
    "random() < 0.5": "not immutable",
    "dblink('host=elsewhere', note) IS NULL": "there is no function dblink",
    # Not the same for every chunk.
    "at < now()": "not immutable",
    "at < CURRENT_TIMESTAMP": "the current time or user",
    "day = CURRENT_DATE": "the current time or user",
    "note = CURRENT_USER": "the current time or user",
    "at < 'now'": "another one every day",
    "day = DATE 'yesterday'": "another one every day",
    "period @> '[today,infinity)'::tsrange": "another one every day",
    "zoned::date = '2026-01-02'": "not immutable",
    "zoned + interval '1 day' > '2026-01-05'": "not immutable",
    "day < zoned": "not immutable",
    "at::text = 'x'": "not immutable",
    "note::date = '2026-01-02'": "not immutable",
    "note || id = 'x'": "not immutable",
    "concat(note, code) = 'x'": "there is no function concat",
    "array_to_string(tags, ',') = 'x'": "not immutable",
    "how::text = 'low'": "not immutable",
    # Functions, operators, types of others.
    "public.leak(note)": "not one of PostgreSQL's own",
    "leak(note)": "there is no function leak",
    "orders.leak": "no captured column",
    "note OPERATOR(public.===) 'x'": "not one of PostgreSQL's own",
    "note === 'x'": "there is no operator ===",
    "code = note": "",
    "lower(code) = 'c1'": "",
    "'x'::public.trap = note": "none of PostgreSQL's plain types",
    "note::public.trap IS NULL": "none of PostgreSQL's plain types",
    "note::public.orders IS NULL": "none of PostgreSQL's plain types",
    "note COLLATE public.other = 'x'": "not one of PostgreSQL's own",
    "row_to_json(orders) IS NULL": "no captured column",
    # Columns that are not captured in clear, system columns, the whole row.
    "secret LIKE 's1%'": "which is masked",
    "hidden = 'x'": "no captured column",
    "ctid = '(0,1)'": "no captured column",
    "xmin::text = '700'": "no captured column",
    "tableoid = 1259": "no captured column",
    "cmin IS NULL": "no captured column",
    'U&"\\0063tid" IS NULL': "no captured column",
    "orders IS NULL": "no captured column",
    "orders.* IS NULL": "a *",
    "(orders).secret = 's1'": "a subscript, or a field",
    # More than a condition.
    "true; DROP TABLE public.orders": "more than one statement",
    "true; COMMIT; DROP TABLE public.orders": "more than one statement",
    "true) OR (true": "no SQL condition",
    "true) AS x; DROP TABLE public.orders; SELECT (1": "no SQL condition",
    "true UNION ALL SELECT name FROM public.salaries": "more than a condition",
    "true GROUP BY id": "more than a condition",
    "true HAVING true": "more than a condition",
    "true ORDER BY id": "more than a condition",
    "true LIMIT 1": "more than a condition",
    "true FOR UPDATE": "more than a condition",
    "true WINDOW w AS ()": "more than a condition",
    "count(*) > 1": "aggregate",
    "max(id) > 1": "there is no function max",
    "row_number() OVER () = 1": "aggregate, a window function",
    "sum(id) FILTER (WHERE ok) > 1": "aggregate",
    "generate_series(1, 3) = 1": "not immutable",
    "unnest(tags) = 't1'": "not immutable",
    "id = $1": "a parameter",
    "id = %s": "no SQL condition",
    "id = :id": "no SQL condition",
    "(id, n) = (1, 2)": "a ROW",
    "tags[1] = 't1'": "a subscript",
    "xmlparse(document '<!DOCTYPE a [<!ENTITY b SYSTEM \"/etc/passwd\">]><a>&b;</a>') IS NULL": "an XML expression",
    "doc IS JSON": "no condition over one row needs",
    "id > 5 -- ) OR true": "",
    "id > 5 /* ; DROP TABLE public.orders */": "",
    "note = 'x'' OR true --'": "",
    "note = E'x\\' OR true --'": "",
    "note = $a$x' OR true --$a$": "",
    "": "no SQL condition",
    "id": "where a condition is needed",
    "id = 'x\0' OR true": "NUL",
    "note = '\ud800'": "UTF-8",
    # What only costs.
    "NOT " * 1000 + "ok": "nested too deeply",
    "(" * 4000 + "ok" + ")" * 4000: "",
    "- " * 2000 + "id = 1": "nested too deeply",
    "(" * 30 + "ok" + " BETWEEN ok AND ok)" * 30: "too long when it is written out",
    "(" * 30 + "ok" + " IN (ok, NOT ok))" * 30: "too long when it is written out",
    "id = 1 OR " * 1200 + "ok": "characters",
    # Values that fail: a sentence, and never the value.
    "note::int = 1": "SQLSTATE 22P02",
    "id / (id - 1) > 1": "SQLSTATE 22012",
    "(id * 1000000000)::int = 1": "SQLSTATE 22003",
    "note ~ ('(' || note)": "SQLSTATE 2201B",
    "repeat(note, 2000000000) = 'x'": "SQLSTATE 54000",
    "length(replace(repeat(note, 10000000), 'note', 'x')) > 0": "SQLSTATE 57014",
}


def filters(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def a_table(captured: Pipeline, *more: str) -> None:
    captured.execute(TABLE, *more, "ALTER TABLE public.orders ADD hidden text", "ANALYZE public.orders")
    captured.with_tables(TableRule("public.orders", leave_out=("hidden",), mask={"secret": "null"}))
    captured.capture()


def calls(conn: psycopg.Connection[Any], condition: sql.Composable) -> list[str]:
    """Operators and functions that PostgreSQL's parser makes of a condition, by OID."""
    trees: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        trees.append(notice.message_detail or "")

    conn.add_notice_handler(keep)
    conn.execute("SET client_min_messages = log; SET debug_pretty_print = off; SET debug_print_parse = on")
    try:
        conn.execute(sql.SQL("SELECT FROM public.orders WHERE\n{}\n").format(condition))
    finally:
        conn.execute("SET debug_print_parse = off; SET client_min_messages = notice")
        conn.remove_notice_handler(keep)
    return sorted(" ".join(called.split()) for called in re.findall(r":(?:opno|funcid)\s+\d+", trees[0]))


def test_a_filter_calls_what_postgresql_itself_makes_of_its_text(captured_on_each: Pipeline) -> None:
    captured = captured_on_each
    a_table(captured)
    alone = exactly(captured.config, TableName("public", "orders"))
    assert alone is not None
    (table,) = catalog.captured_tables(captured.connection, alone)
    conn = captured.connection
    conn.execute("SET search_path = pg_catalog")
    differing = {}
    for text in filters(TAKEN):
        condition = row_filter.condition(conn, table, text)
        written, read = calls(conn, condition), calls(conn, sql.SQL(text))
        query = sql.SQL("SELECT id FROM public.orders WHERE\n{}\nORDER BY id")
        rows = [conn.execute(query.format(one)).fetchall() for one in (condition, sql.SQL(text))]
        if written != read or rows[0] != rows[1]:
            differing[text] = (written, read)
    assert differing == {}


def test_a_hostile_filter_is_refused_or_does_no_harm(captured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    a_table(captured, TRAPS)
    monkeypatch.setattr(sessions, "TRY_FILTER_S", 2)
    facts = f"""
        SELECT (SELECT count(*) FROM public.orders), (SELECT is_called FROM public.numbers),
               (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_replication_slots),
               confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{captured.config.slot}'
    """
    before = captured.query(facts)
    harm = {}
    for text, expected in HOSTILE.items():
        try:
            captured.plan(
                tables=["public.orders"], row_filter=text.replace("{slot}", captured.config.slot), replace=True
            )
            answer = ""
        except RowFilterInvalid as refused:
            answer = str(refused.facts["detail"])
        if (expected not in answer) if expected else answer:
            harm[text[:80]] = answer
    assert harm == {}
    assert captured.query(facts) == before


@pytest.mark.parametrize("value", ["note 1", "s1", "4711"])
def test_no_refusal_quotes_a_value_or_a_literal(captured: Pipeline, value: str) -> None:
    a_table(captured)
    for text in (
        "note::int = 1",
        f"'{value}' = 'x' AND nothing",
        f"now('{value}') IS NULL",
        f"'{value}",
        f"'{value}'::regclass = 1",
        f"'{value} x'::int = 1",
        f"at < 'now {value}'",
    ):
        with pytest.raises(RowFilterInvalid) as refused:
            captured.plan(tables=["public.orders"], row_filter=text)
        assert value not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_rows_are_those_of_the_filter_in_every_range_and_among_chosen_keys(captured: Pipeline) -> None:
    a_table(captured)
    (backfill,) = captured.plan(tables=["public.orders"], row_filter="n IN (1, 2) -- no more", chunk_rows=2, readers=1)
    assert len(captured.ranges(backfill)) > 1
    captured.read()
    assert {row["n"] for row in captured.rows(backfill)} == {1, 2}
    assert captured.one("SELECT count(*) FROM public.orders WHERE n IN (1, 2)") == len(captured.rows(backfill))
    (keys,) = captured.plan(
        tables=["public.orders"], row_filter="n = 1", mode="keys", keys=[["1"], ["2"], ["12"]], replace=True
    )
    captured.read()
    assert sorted(row["id"] for row in captured.rows(keys)) == [1, 12]


def test_a_filter_that_fails_behind_the_rows_it_was_tried_on_ends_the_reader_with_a_sentence(
    captured: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_table(captured)
    captured.plan(tables=["public.orders"], row_filter="100 / (id - 200) < 5")
    captured.execute("INSERT INTO public.orders (id) VALUES (200)")
    with pytest.raises(RowFilterInvalid, match=r"it divides by zero \(SQLSTATE 22012\)") as failed:
        captured.read()
    assert "200" not in str(failed.value)


def test_a_statement_with_a_filter_ends_after_its_time(captured: Pipeline) -> None:
    a_table(captured, "UPDATE public.orders SET note = NULL")
    captured.plan(tables=["public.orders"], row_filter="length(replace(repeat(note, 10000000), 'note', 'x')) > 0")
    captured.execute("UPDATE public.orders SET note = 'note'")
    captured.with_bounds(filter_s=1)
    with pytest.raises(RowFilterInvalid, match=r"it took too long, or somebody cancelled it \(SQLSTATE 57014\)"):
        captured.read()
