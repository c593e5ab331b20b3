"""Record the golden streams: `python -m tests.golden.record` runs workload.sql on real servers and writes
recordings/*.json.

A recording holds the server's version, pg_type as far as the stream names it, the messages in hex, and per table what
it holds in the end, every value as the text of its output function. Record again only when the workload changes."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sandbox.services.postgres import running
from tests.support import servers
from tidemark.pgoutput.messages import parse_relation
from tidemark.source.catalogue.catalog import read_types

HERE = Path(__file__).parent
SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}


def record(version: int) -> dict[str, Any]:
    """Run the workload on a server of its own and read the slot back through SQL: the bytes that a walsender would
    send."""
    blocks = re.split(r"\n\s*\n", (HERE / "workload.sql").read_text())
    ddl, changes = blocks[1], blocks[2:]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), version, fsync="off") as server,
        psycopg.connect(server.conninfo(), autocommit=True) as connection,
    ):
        for name, value in SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute(ddl)
        connection.execute("SELECT pg_create_logical_replication_slot('golden', 'pgoutput')")
        for block in changes:
            connection.execute(f"BEGIN; {block}; COMMIT")
        messages = [
            row[0]
            for row in connection.execute(
                """
                SELECT data FROM pg_logical_slot_peek_binary_changes(
                  'golden', NULL, NULL, 'proto_version', '1', 'publication_names', 'golden', 'messages', 'true')
                """
            )
        ]
        relations = [parse_relation(m) for m in messages if m.startswith(b"R")]
        oids = {column.type_oid for relation in relations for column in relation.columns}
        types = read_types(connection)
        oids |= {types[o].element_oid for o in oids} | {types[o].base_oid for o in oids}
        tables = {}
        for relation in relations:
            table = relation.table
            tables[str(table)] = _contents(connection, table.schema, table.name, [c.name for c in relation.columns])
        return {
            "server": connection.info.server_version,
            "types": [
                [t.oid, t.name, t.schema, t.kind, t.base_oid, t.base_typmod, t.element_oid, t.delimiter]
                for t in (types[o] for o in sorted(oids) if o)
            ],
            "tables": tables,
            "messages": [message.hex() for message in messages],
        }


def _contents(connection: psycopg.Connection[Any], schema: str, table: str, columns: list[str]) -> dict[str, Any]:
    values = sql.SQL(", ").join(
        sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(sql.Identifier(column)) for column in columns
    )
    where = sql.SQL("WHERE open") if table == "filtered" else sql.SQL("")
    query = sql.SQL("SELECT {} FROM {} {} ORDER BY 1, 2").format(values, sql.Identifier(schema, table), where)
    return {"columns": columns, "rows": [list(row) for row in connection.execute(query)]}


def main() -> None:
    (HERE / "recordings").mkdir(exist_ok=True)
    for version in servers.VERSIONS:
        recording = record(version)
        path = HERE / "recordings" / f"postgres{version}.json"
        path.write_text(json.dumps(recording, indent=0, ensure_ascii=False) + "\n")
        print(f"{path.name}: {len(recording['messages'])} messages, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
