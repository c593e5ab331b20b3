"""Replaces psycopg's errors by the same errors without the values that PostgreSQL and libpq quote.

PostgreSQL quotes values of rows in several places: in the message (`invalid input syntax for type integer: "…"`), in
DETAIL (`Key (email)=(…) already exists`, `Failing row contains (…)`), in CONTEXT (`COPY orders, line 3, column total:
"…"`) and in the statement's own LINE. Tracebacks with these texts would go to Airflow's logs, which more people read
than the tables. So an error keeps its class, its SQLSTATE and the names of objects in its separate fields. It keeps the
message only if its SQLSTATE is in `SAFE_SQLSTATES`: these messages name only objects, settings and processes.

`postgres_session` applies this to every session; calls of libpq itself (COPY, the replication protocol) raise
`from_result`. Source: PostgreSQL documentation, 32.3.1 "PQresultErrorField" and appendix A "PostgreSQL Error Codes";
psycopg documentation, "errors – Package exceptions".
"""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import pq
from psycopg.pq import DiagnosticField

# SQLSTATEs, or their beginnings, whose messages quote no value: connection, read-only transaction, authorization,
# database name, rollback of a transaction, missing right, resources, prerequisite state, intervention of an operator.
# Classes 42, 3F and 0A are not among them: `'…'::regclass` quotes the value as the name of a relation, schema or
# database that does not exist.
SAFE_SQLSTATES: Final = ("08", "25006", "28", "3D000", "40", "42501", "53", "55", "57")

# A walsender converts no value to a name: row filters of publications contain only immutable functions, and ::regclass
# is not immutable. An operator has to read the name of a slot or publication that does not exist.
SAFE_FROM_A_WALSENDER: Final = (*SAFE_SQLSTATES, "42", "58P01")

_NAMES: Final = {
    "schema": DiagnosticField.SCHEMA_NAME,
    "table": DiagnosticField.TABLE_NAME,
    "column": DiagnosticField.COLUMN_NAME,
    "type": DiagnosticField.DATATYPE_NAME,
    "constraint": DiagnosticField.CONSTRAINT_NAME,
}

# The beginnings of psycopg's texts about a connection attempt that failed. No statement was sent yet, so these texts
# quote no value.
_OF_AN_ATTEMPT: Final = re.compile(
    r"connection (failed|is bad|timeout)|failed to resolve|conversion from |invalid port"
)

# libpq's texts about a connection that ended. The same text may also contain the last error, which may quote a value.
_OF_AN_END: Final = re.compile(
    r"server closed the connection unexpectedly|the connection is (lost|closed)|terminating connection.*"
    r"|could not (receive|send) (data|SSL).*|SSL (error|SYSCALL error|connection).*|no connection to the server"
    r"|connection not open|another command is already in progress|timeout expired"
)


def without_values(
    failed: psycopg.Error, *, password: str = "", safe: tuple[str, ...] = SAFE_SQLSTATES
) -> psycopg.Error:
    """An error of the same class that quotes nothing. Raise it outside the `except` block, so that it has no link
    to the original.

    Errors without an SQLSTATE come from libpq or psycopg. The text of a failed connection attempt stays (host, role,
    database), without `password`. A lost connection keeps the words that describe the loss. All other texts may contain
    a connection string or a value, and are dropped.
    """
    diag = failed.diag
    if diag.sqlstate is None:
        return type(failed)(_client_text(failed, password))
    names = {field_name: getattr(diag, field.name.lower()) for field_name, field in _NAMES.items()}
    sentence = _sentence(type(failed), diag, {field_name: name for field_name, name in names.items() if name}, safe)
    fields_kept: dict[int, bytes | None] = dict.fromkeys(DiagnosticField)
    fields_kept |= {_NAMES[field_name]: name.encode() for field_name, name in names.items() if name}
    fields_kept[DiagnosticField.SQLSTATE] = diag.sqlstate.encode()
    fields_kept[DiagnosticField.MESSAGE_PRIMARY] = sentence.encode()
    return type(failed)(sentence, info=fields_kept)


def from_result(result: pq.abc.PGresult, safe: tuple[str, ...] = SAFE_SQLSTATES) -> psycopg.Error:
    """As `psycopg.errors.error_from_result`, without values. Without an SQLSTATE it is libpq's own, which lost the
    connection: psycopg has no class of its own for that."""
    failed = psycopg.errors.error_from_result(result)
    return without_values(failed if failed.sqlstate else psycopg.OperationalError(str(failed)), safe=safe)


def _sentence(
    kind: type[psycopg.Error], diag: psycopg.errors.Diagnostic, names: dict[str, str], safe: tuple[str, ...]
) -> str:
    sqlstate = diag.sqlstate or ""
    # A function may raise any text under any SQLSTATE. The source files of procedural languages begin with "pl"; no
    # file with a safe message does.
    by_a_function = (diag.source_file or "").startswith("pl")
    if sqlstate.startswith(safe) and not by_a_function and diag.message_primary:
        return diag.message_primary
    condition = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    return ", ".join([f"{condition} (SQLSTATE {sqlstate})", *(f"{field} {name}" for field, name in names.items())])


def _client_text(failed: psycopg.Error, password: str) -> str:
    text = str(failed)
    if not isinstance(failed, psycopg.OperationalError):
        text = ""
    elif _OF_AN_ATTEMPT.match(text):
        text = text.replace(password, "***") if password else text
    else:
        text = "; ".join(dict.fromkeys(match.group() for match in _OF_AN_END.finditer(text)))
    return text or f"{type(failed).__name__} of psycopg without an SQLSTATE"
