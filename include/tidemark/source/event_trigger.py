"""Renders the SQL of the event trigger that writes definitions into the stream, and compares the installed one with it.

    CREATE, ALTER  ──ddl_command_end──►  tell(relations)  ──►  one logical message per relation, in the transaction
    DROP           ──sql_drop────────►                         that changes it, so in the order of the WAL
    ALTER, rows    ──table_rewrite───►  on_rewrite        ──►  a message that the rows are rewritten, before that one

The trigger is optional. A DBA creates it: PostgreSQL requires a superuser, or the role that a provider has for that. It
fails no statement of a user: after an error in it, it writes a message that makes the definitions unknown from there
on. It waits for no lock longer than `LOCK_TIMEOUT`.

Everybody may write a message under any prefix (docs/decisions/2026-11-22-a-message-proves-nothing-by-itself.md). So
each message of the trigger carries a code over the transaction's id and the text. The keys of the code are readable
only by the trigger's owner and the pipeline's role. They are rows of a materialized view: no publication can contain
one, a dump has its definition without its rows, and a restore makes new keys.

Decoding orders the records of a transaction and its subtransactions by LSN. It uses the end of a message's record as
the message's LSN, and the next record begins there. A block with EXCEPTION is a subtransaction, so a row written right
after the message could come before it. An empty message after each message separates the two.

The functions query the catalogue with the snapshot of the user's transaction. Under REPEATABLE READ this snapshot may
be older than the catalogue that the statement itself uses, so the definition is unknown there too. Source: PostgreSQL
documentation, 38 "Event Triggers", 9.30 "Event Trigger Functions", 5.10.6 "Usage Patterns" (of schemas).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig
from tidemark.findings import Finding
from tidemark.formats.definition import PREFIX, Keys
from tidemark.postgres.postgres_session import SESSION_SETTINGS
from tidemark.source.catalogue.identifiers import quoted

LOCK_TIMEOUT: Final = "100ms"
# A definition of more bytes, as of a table with thousands of long names, is sent as unknown.
MOST_BYTES: Final = 900_000

_LONGEST_NAME: Final = 63

# A value's text depends on the settings of the session, and this session belongs to the user who alters a table.
_TEXT_SETTINGS: Final = ("TimeZone", "DateStyle", "IntervalStyle", "bytea_output", "extra_float_digits")
_SETTINGS: Final = (
    ("search_path", "pg_catalog, pg_temp"),
    ("lock_timeout", LOCK_TIMEOUT),
    ("jit", "off"),
    *((name, SESSION_SETTINGS[name]) for name in _TEXT_SETTINGS),
)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of the trigger: its name, its arguments as SQL, and its body as plpgsql with the placeholders of
    `_body`."""

    name: str
    arguments: str
    body: str

    @property
    def is_entry(self) -> bool:
        """Whether an event calls the function. Only such a function has no arguments. It has rights and settings of
        its own, and the functions that it calls run with these."""
        return not self.arguments


# OTHERS does not catch a cancelled query, since the user cancelled it, nor a failed assertion, which these functions do
# not have. If even the last message cannot be written because a right is missing, `_problem` reports that.
_CAUGHT: Final = """
EXCEPTION WHEN OTHERS THEN
    BEGIN
        PERFORM pg_logical_emit_message(true, {prefix}, 'unknown');
        PERFORM pg_logical_emit_message(true, {prefix}, '');
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
"""

_FUNCTIONS: Final = (
    _Function(
        "emit",
        "definition json",
        """
DECLARE
    content bytea := convert_to(
        json_build_object('publication', {publication}::text, 'definition', definition)::text, 'UTF8');
    code bytea;
BEGIN
    SELECT sha256(k.outer_key || sha256(
               k.inner_key || convert_to(pg_current_xact_id()::text || ':', 'UTF8') || content))
      INTO STRICT code FROM {schema}.keys k;
    PERFORM pg_logical_emit_message(true, {prefix}, convert_to(encode(code, 'hex'), 'UTF8') || content);
    PERFORM pg_logical_emit_message(true, {prefix}, '');
END
""",
    ),
    _Function(
        "tell",
        "touched oid[]",
        """
DECLARE
    published record;
    one record;
    above oid[];
    next_above oid;
    listed int2vector;
    types json;
    definition json;
BEGIN
    SELECT p.oid, p.puballtables INTO published FROM pg_publication p WHERE p.pubname = {publication};
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR one IN
        SELECT c.oid, c.relname, c.relnamespace, n.nspname, c.relkind, c.relpersistence, c.relreplident,
               coalesce(pg_relation_filenode(c.oid), 0) AS filenode
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = ANY (touched) AND c.oid >= 16384 AND c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
           AND c.relnamespace <> '{schema}'::regnamespace
         ORDER BY c.oid
    LOOP
        above := '{{}}';
        next_above := one.oid;
        LOOP
            SELECT i.inhparent INTO next_above FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
             WHERE i.inhrelid = next_above AND p.relkind = 'p' AND NOT i.inhdetachpending;
            EXIT WHEN NOT FOUND;
            above := above || next_above;
        END LOOP;
        SELECT r.prattrs INTO listed FROM pg_publication_rel r
         WHERE r.prpubid = published.oid AND r.prrelid = ANY (one.oid || above) ORDER BY r.prrelid <> one.oid LIMIT 1;
        CONTINUE WHEN NOT (FOUND OR published.puballtables OR EXISTS (
            SELECT FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
             WHERE s.pnpubid = published.oid AND c.oid = ANY (one.oid || above)));
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM {schema}.emit(json_build_object('kind', 'unknown', 'oid', one.oid::bigint, 'sqlstate', '25001'));
            CONTINUE;
        END IF;
        types := '[]';
        IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = one.oid AND a.attnum > 0 AND a.atttypid >= 16384) THEN
            WITH RECURSIVE behind AS (
                SELECT a.atttypid AS oid FROM pg_attribute a
                 WHERE a.attrelid = one.oid AND a.attnum > 0 AND a.atttypid >= 16384
                UNION SELECT next.oid FROM behind JOIN pg_type t ON t.oid = behind.oid
                 CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) AS next (oid) WHERE next.oid >= 16384
            )
            SELECT json_agg(json_build_array(
                t.oid::bigint, n.nspname, t.typname, t.typtype, t.typbasetype::bigint, t.typtypmod, t.typelem::bigint,
                t.typdelim) ORDER BY t.oid)
              INTO types
              FROM behind JOIN pg_type t ON t.oid = behind.oid JOIN pg_namespace n ON n.oid = t.typnamespace;
        END IF;
        SELECT json_build_object(
            'kind', 'relation', 'oid', one.oid::bigint, 'schema', one.nspname, 'name', one.relname,
            'relkind', one.relkind, 'filenode', one.filenode::bigint, 'persistence', one.relpersistence,
            'identity', one.relreplident, 'above', above::bigint[], 'listed', listed::int2[],
            'key', coalesce((
                SELECT array_agg(k.attnum ORDER BY k.place)
                  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                 WHERE i.indrelid = one.oid AND i.indisvalid AND i.indimmediate AND k.place <= i.indnkeyatts
                   AND CASE one.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
            ), '{{}}'),
            'columns', coalesce((
                SELECT json_agg(json_build_array(
                    a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.attnotnull, a.attgenerated, a.atthasmissing,
                    CASE WHEN octet_length(array_to_string(a.attmissingval, '')) <= 1000
                         THEN array_to_string(a.attmissingval, '') END) ORDER BY a.attnum)
                  FROM pg_attribute a WHERE a.attrelid = one.oid AND a.attnum > 0 AND NOT a.attisdropped
            ), '[]'),
            'types', types
        ) INTO definition;
        IF octet_length(definition::text) > {most_bytes} THEN
            definition := json_build_object('kind', 'unknown', 'oid', one.oid::bigint, 'sqlstate', '54000');
        END IF;
        PERFORM {schema}.emit(definition);
    END LOOP;
END
""",
    ),
    _Function(
        "on_change",
        "",
        """
DECLARE
    touched oid[];
    types oid[];
BEGIN
    SELECT array_agg(DISTINCT coalesce(i.indrelid, k.conrelid, r.prrelid, c.objid))
               FILTER (WHERE c.classid = 'pg_class'::regclass OR k.oid IS NOT NULL OR r.oid IS NOT NULL),
           array_agg(DISTINCT coalesce(composite.reltype, c.objid))
               FILTER (WHERE c.classid = 'pg_type'::regclass OR composite.oid IS NOT NULL)
      INTO touched, types
      FROM pg_event_trigger_ddl_commands() c
      LEFT JOIN pg_index i ON c.classid = 'pg_class'::regclass AND i.indexrelid = c.objid
      LEFT JOIN pg_class composite
             ON c.classid = 'pg_class'::regclass AND composite.oid = c.objid AND composite.relkind = 'c'
      LEFT JOIN pg_constraint k ON c.classid = 'pg_constraint'::regclass AND k.oid = c.objid
      LEFT JOIN pg_publication_rel r ON c.classid = 'pg_publication_rel'::regclass AND r.oid = c.objid
     WHERE c.objid >= 16384;
    IF types IS NOT NULL AND tg_tag LIKE 'ALTER %%' THEN
        WITH RECURSIVE behind AS (
            SELECT oid FROM unnest(types) AS oid
            UNION SELECT t.oid FROM behind
             CROSS JOIN LATERAL (
                SELECT d.oid FROM pg_type d WHERE d.typbasetype = behind.oid OR d.typelem = behind.oid
                UNION ALL SELECT g.rngtypid FROM pg_range g WHERE g.rngsubtype = behind.oid
                UNION ALL SELECT c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                 WHERE a.atttypid = behind.oid AND NOT a.attisdropped AND c.relkind = 'c'
             ) AS t
        )
        SELECT touched || array_agg(DISTINCT a.attrelid) INTO touched
          FROM behind JOIN pg_attribute a ON a.atttypid = behind.oid AND a.attnum > 0 AND NOT a.attisdropped;
    END IF;
    IF tg_tag LIKE 'ALTER %%' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (touched) AND c.relhassubclass) THEN
        -- What an ALTER did to children of a table is theirs; those that it left alone have older rows everywhere.
        WITH RECURSIVE below AS (
            SELECT i.inhrelid AS oid FROM pg_inherits i WHERE i.inhparent = ANY (touched)
            UNION SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
        ), now AS (SELECT pg_current_xact_id()::text::bigint AS xid)
        SELECT touched || array_agg(below.oid) INTO touched FROM below, now
         WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = below.oid
                          AND (c.xmin::text::bigint - now.xid) & 4294967295 < 2147483648)
            OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = below.oid AND a.attnum > 0
                          AND (a.xmin::text::bigint - now.xid) & 4294967295 < 2147483648)
            OR EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = below.oid
                          AND (h.xmin::text::bigint - now.xid) & 4294967295 < 2147483648);
    END IF;
    IF touched IS NOT NULL THEN
        PERFORM {schema}.tell(touched);
    END IF;
"""
        + _CAUGHT,
    ),
    _Function(
        "on_drop",
        "",
        """
DECLARE
    one record;
    touched oid[] := '{{}}';
    schemas text[] := '{{}}';
BEGIN
    FOR one IN SELECT classid, objid, objsubid, object_type, schema_name, is_temporary
                 FROM pg_event_trigger_dropped_objects() LOOP
        CONTINUE WHEN one.is_temporary;
        IF one.classid = 'pg_class'::regclass AND one.objsubid > 0 THEN
            touched := touched || one.objid;
        ELSIF one.object_type IN ('table', 'foreign table') THEN
            PERFORM {schema}.emit(json_build_object('kind', 'dropped', 'oid', one.objid::bigint));
        ELSIF one.object_type IN ('index', 'table constraint') THEN
            schemas := schemas || one.schema_name;
        END IF;
    END LOOP;
    IF schemas <> '{{}}' THEN
        -- The dropped one does not say whose it was: a key may be gone where a table has none.
        SELECT touched || array_agg(c.oid) INTO touched FROM pg_class c
         WHERE c.relnamespace IN (SELECT n.oid FROM pg_namespace n WHERE n.nspname = ANY (schemas))
           AND c.relkind IN ('r', 'p') AND c.relreplident <> 'n' AND NOT EXISTS (
               SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                  AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END);
    END IF;
    PERFORM {schema}.tell(touched);
"""
        + _CAUGHT,
    ),
    _Function(
        "on_rewrite",
        "",
        """
DECLARE
    written oid := pg_event_trigger_table_rewrite_oid();
    above oid[] := '{{}}';
    next_above oid := written;
BEGIN
    LOOP
        SELECT i.inhparent INTO next_above FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
         WHERE i.inhrelid = next_above AND p.relkind = 'p' AND NOT i.inhdetachpending;
        EXIT WHEN NOT FOUND;
        above := above || next_above;
    END LOOP;
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = written AND c.relpersistence <> 't') THEN
        PERFORM {schema}.emit(json_build_object(
            'kind', 'rewritten', 'oid', written::bigint, 'reasons', pg_event_trigger_table_rewrite_reason(),
            'above', above::bigint[]));
    END IF;
"""
        + _CAUGHT,
    ),
)

# Event -> the function that PostgreSQL calls, and the ending of the event trigger's name.
_EVENTS: Final = {
    "ddl_command_end": ("on_change", "end"),
    "sql_drop": ("on_drop", "drop"),
    "table_rewrite": ("on_rewrite", "write"),
}
_LONGEST_END: Final = 1 + max(len(end) for _, end in _EVENTS.values())

_KEYS: Final = "sha512(" + " || ".join(["uuid_send(gen_random_uuid())"] * 4) + ")"


def schema_of(config: PipelineConfig) -> str:
    """The name of the schema that holds the trigger's functions. The names of the event triggers begin with it. It
    comes from the slot's name, which is unique on a server."""
    name = f"ddl_{config.slot}"
    if len(name) <= _LONGEST_NAME - _LONGEST_END:
        return name
    return f"{name[:48]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def create_sql(config: PipelineConfig, role: str) -> str:
    """The script that creates the trigger or replaces an older one. `role` is the pipeline's role."""
    schema = quoted(schema_of(config))
    parts = [
        "-- To be run as a superuser, or as the role that may create event triggers where a provider has none.",
        "BEGIN;",
        *_removal(config),
        f"CREATE SCHEMA {schema};",
        f"CREATE MATERIALIZED VIEW {schema}.keys AS",
        f"    SELECT {_KEYS} AS inner_key,",
        f"           {_KEYS} AS outer_key;",
    ]
    settings = "".join(f"\n    SET {name} = {_setting(name, value)}" for name, value in _SETTINGS)
    for function in _FUNCTIONS:
        returns, rights = ("event_trigger", f" SECURITY DEFINER{settings}") if function.is_entry else ("void", "")
        parts.append(
            f"CREATE FUNCTION {schema}.{function.name}({function.arguments}) RETURNS {returns}\n"
            f"    LANGUAGE plpgsql{rights}\nAS $tidemark${_body(config, function)}$tidemark$;\n"
            f"REVOKE ALL ON FUNCTION {schema}.{function.name}({' '.join(function.arguments.split()[1:])}) FROM PUBLIC;"
        )
    parts += [
        f"GRANT USAGE ON SCHEMA {schema} TO {quoted(role)};",
        f"GRANT SELECT ON {schema}.keys TO {quoted(role)};",
    ]
    for event, (function_name, _) in _EVENTS.items():
        name = quoted(_trigger_name(config, event))
        parts += [
            f"CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION {schema}.{function_name}();",
            # By default an event trigger does not fire under session_replication_role = replica.
            f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS;",
        ]
    return "\n".join([*parts, "COMMIT;", ""])


def drop_sql(config: PipelineConfig) -> str:
    """The script that removes the trigger."""
    return "\n".join(["BEGIN;", *_removal(config), "COMMIT;", ""])


def _removal(config: PipelineConfig) -> list[str]:
    triggers = [f"DROP EVENT TRIGGER IF EXISTS {quoted(_trigger_name(config, event))};" for event in _EVENTS]
    return [*triggers, f"DROP SCHEMA IF EXISTS {quoted(schema_of(config))} CASCADE;"]


def _trigger_name(config: PipelineConfig, event: str) -> str:
    return f"{schema_of(config)}_{_EVENTS[event][1]}"


def _body(config: PipelineConfig, function: _Function) -> str:
    return function.body.format(
        schema=quoted(schema_of(config)),
        publication=sql.Literal(config.publication).as_string(None),
        prefix=sql.Literal(PREFIX).as_string(None),
        most_bytes=MOST_BYTES,
    ).replace("%%", "%")


def _setting(name: str, value: str) -> str:
    return value if name == "search_path" else sql.Literal(value).as_string(None)


# --- the installed one ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstalledTrigger:
    """The state of an installed trigger.

    - `problem` is the reason why its messages are not trusted, as a clause for a message; None if they are trusted.
    - `since_xid` is the 64-bit id of the last transaction that changed a part of the trigger. Messages of older
      transactions are not trusted.
    - `keys` are the keys of the codes in its messages.
    """

    problem: str | None
    since_xid: int = 0
    keys: Keys | None = None


def installed_trigger(conn: psycopg.Connection[Any], config: PipelineConfig) -> InstalledTrigger | None:
    """Read the trigger that is installed for the pipeline; None if there is none."""
    schema = schema_of(config)
    names = [_trigger_name(config, event) for event in _EVENTS]
    triggers = conn.execute(
        """
        SELECT e.evtname::text, e.evtevent::text, p.proname::text, n.nspname::text, e.evtenabled::text,
               e.evttags IS NULL, e.evtowner, e.xmin::text::bigint
          FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE e.evtname = ANY(%s)
        """,
        (names,),
    ).fetchall()
    emit = f"pg_catalog.pg_logical_emit_message(bool, text, bytea{', bool' * (conn.info.server_version >= 170000)})"
    functions = conn.execute(
        """
        SELECT p.proname::text, p.prosrc, p.prosecdef, p.proconfig, l.lanname::text, p.proowner, p.xmin::text::bigint,
               EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                        WHERE a.grantee <> p.proowner),
               has_function_privilege(p.proowner, e.oid, 'EXECUTE'), e.xmin::text::bigint
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
          JOIN pg_proc e ON e.oid = to_regprocedure(%s)
         WHERE n.nspname = %s
        """,
        (emit, schema),
    ).fetchall()
    if not triggers and not functions:
        return None
    view = conn.execute(
        """
        SELECT n.nspowner, c.relowner, c.relkind = 'm' AND c.relispopulated, n.xmin::text::bigint,
               c.xmin::text::bigint,
               EXISTS (SELECT FROM aclexplode(c.relacl) a
                        WHERE a.grantee <> c.relowner AND a.grantee <> current_user::regrole::oid),
               has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
          FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'keys'
         WHERE n.nspname = %s
        """,
        (schema,),
    ).fetchone()
    problem = _problem(config, triggers, functions, view)
    if problem is not None or view is None:
        return InstalledTrigger(problem)
    row = conn.execute(
        sql.SQL(
            "SELECT inner_key, outer_key, xmin::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint "
            "FROM {}.keys"
        ).format(sql.Identifier(schema))
    ).fetchone()
    if row is None:
        return InstalledTrigger("its keys are gone")
    inner, outer, keys_xmin, next_xid = row
    of_functions = (xmin for f in functions for xmin in (f[6], f[9]))
    written = [*(t[-1] for t in triggers), *of_functions, view[3], view[4], keys_xmin]
    return InstalledTrigger(None, max(next_xid - (next_xid - xmin) % 2**32 for xmin in written), Keys(inner, outer))


def trigger_findings(
    conn: psycopg.Connection[Any], config: PipelineConfig, created_by: str = "a superuser"
) -> Iterator[Finding]:
    """A finding if the trigger is missing or not trusted. `created_by` is who may create event triggers on this
    server."""
    installed = installed_trigger(conn, config)
    if installed is None:
        yield Finding.note(
            "trigger",
            "No event trigger writes definitions into the stream. Where a table is altered more than once between two "
            "runs, it is read again or built anew; with the trigger every change of a definition is followed",
            f"As {created_by} run what `tidemark trigger {config.pipeline} --sql` prints",
        )
    elif installed.problem is not None:
        yield Finding.warning(
            "trigger",
            f"The event trigger that writes definitions into the stream is not trusted: {installed.problem}",
            f"As {created_by} run what `tidemark trigger {config.pipeline} --sql` prints; with --remove it prints what "
            "removes the trigger",
        )


def _problem(
    config: PipelineConfig,
    triggers: list[tuple[Any, ...]],
    functions: list[tuple[Any, ...]],
    view: tuple[Any, ...] | None,
) -> str | None:
    schema = schema_of(config)
    made = {(_trigger_name(config, event), event, function, schema) for event, (function, _) in _EVENTS.items()}
    if {tuple(trigger[:4]) for trigger in triggers} != made:
        return "one of its event triggers is missing, or calls another function"
    if any(enabled != "A" or not all_tags for *_, enabled, all_tags, _, _ in triggers):
        return "one of its event triggers is not enabled always, or for some commands alone"
    settings = frozenset(f"{name}={value}" for name, value in _SETTINGS)
    expected = {
        (f.name, _body(config, f), f.is_entry, settings if f.is_entry else frozenset(), "plpgsql") for f in _FUNCTIONS
    }
    if expected != {
        (name, body, definer, frozenset(text.replace('"', "") for text in own or ()), language)
        for name, body, definer, own, language, *_ in functions
    }:
        return "its functions are not those that this version of Tidemark makes"
    if view is None or not view[2]:
        return "its keys are gone"
    if len({view[0], view[1], *(t[6] for t in triggers), *(f[5] for f in functions)}) != 1:
        return "its parts belong to several roles"
    if any(function[7] for function in functions) or view[5]:
        return "others than its owner may call its functions or read its keys"
    if not all(function[8] for function in functions):
        return "its owner may not execute pg_logical_emit_message"
    if not view[6]:
        return "the pipeline's role may not read its keys"
    return None
