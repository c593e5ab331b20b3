"""Writes the SQL that a source's administrator runs once for a pipeline: a role that reads, and may publish the tables.

The script grants in DO blocks that read the catalogue, so it works without the names of the owners and the server's
version. It may run twice. docs/own-database.md has the same grants as single statements.
"""

from __future__ import annotations

from psycopg import sql

from tidemark.config import PipelineConfig
from tidemark.config.table_rules import split_pattern

_SCRIPT = """\
-- For pipeline {pipeline}: run it in the database to be captured,
-- as a superuser, or as the administrator of a managed service.
DO $tidemark$
DECLARE
    captures CONSTANT text := {role};
    schemas CONSTANT text[] := {schemas};
    owner text;
    schema_name text;
BEGIN
    IF current_setting('wal_level') <> 'logical' AND current_setting('server_version_num')::int < 190000 THEN
        RAISE WARNING 'wal_level is %; set it to logical (a restart is needed)', current_setting('wal_level');
    END IF;
    IF to_regrole(quote_ident(captures)) IS NULL THEN
        EXECUTE format('CREATE ROLE %I LOGIN', captures);
    END IF;
    IF to_regrole('rds_replication') IS NOT NULL THEN
        EXECUTE format('GRANT rds_replication TO %I', captures);
    ELSE
        EXECUTE format('ALTER ROLE %I REPLICATION', captures);
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), captures);
    FOR schema_name IN SELECT nspname FROM pg_namespace WHERE nspname LIKE ANY (schemas) AND nspname !~ '^pg_' LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', schema_name, captures);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', schema_name, captures);
        -- An owner of tables may create more: the role may read these too, and may publish as the owner.
        FOR owner IN SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = schema_name LOOP
            EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT SELECT ON TABLES TO %I',
                           owner, schema_name, captures);
            CONTINUE WHEN owner = captures;
            IF (SELECT rolsuper FROM pg_roles WHERE rolname = owner) THEN
                RAISE WARNING 'superuser % owns tables of %: create the publication yourself', owner, schema_name;
                CONTINUE;
            END IF;
            EXECUTE format('GRANT CREATE ON DATABASE %I TO %I', current_database(), owner);
            IF current_setting('server_version_num')::int >= 160000 THEN
                EXECUTE format('GRANT %I TO %I WITH INHERIT FALSE, SET TRUE', owner, captures);
            ELSE
                EXECUTE format('ALTER ROLE %I NOINHERIT', captures);
                EXECUTE format('GRANT %I TO %I', owner, captures);
            END IF;
        END LOOP;
    END LOOP;
END
$tidemark$;
-- Then a password, in psql: \\password {role_name}
-- And a line in pg_hba.conf, where the server is your own.
"""


def grants_sql(config: PipelineConfig, role: str) -> str:
    """The script for the pipeline's tables that creates `role` and grants it what it needs."""
    patterns = sorted({_like(rule.pattern) for rule in config.tables})
    schemas = sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(map(sql.Literal, patterns)))
    return _SCRIPT.format(
        pipeline=config.pipeline,
        role=sql.Literal(role).as_string(None),
        schemas=schemas.as_string(None),
        role_name=sql.Identifier(role).as_string(None),
    )


def _like(pattern: str) -> str:
    """The schema part of a table's name or pattern, as a pattern of LIKE. A class of characters fits any character."""
    (text, quoted), _ = split_pattern(pattern)
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    if quoted:
        return escaped
    like, inside = "", False
    for character in escaped:
        if inside:
            inside = character != "]"
        elif character == "[":
            inside, like = True, like + "_"
        else:
            like += {"*": "%", "?": "_"}.get(character, character)
    return like
