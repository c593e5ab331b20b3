"""Defines the connection type `tidemark`: fields of `postgres`, and a Test whether a source can be captured there.

A pipeline takes connections of the types `postgres` and `tidemark` alike. Source: Airflow documentation, "Managing
Connections", "Testing Connections".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from airflow.sdk import BaseHook

from tidemark.errors import TidemarkError
from tidemark_airflow import connections


class TidemarkSourceHook(BaseHook):
    """For Airflow's *Test* button. It changes nothing at the source."""

    conn_name_attr: ClassVar[str] = "tidemark_conn_id"
    default_conn_name: ClassVar[str] = "tidemark_source"
    conn_type: ClassVar[str] = "tidemark"
    hook_name: ClassVar[str] = "Tidemark source (PostgreSQL)"

    def __init__(self, tidemark_conn_id: str = default_conn_name, **_: Any) -> None:
        super().__init__()
        self.tidemark_conn_id = tidemark_conn_id

    def get_conn(self) -> Any:
        """A session of psycopg with Tidemark's settings. Raises what makes the connection unusable."""
        from tidemark.postgres import postgres_session

        session = postgres_session.connect(
            connections.conninfo(self.tidemark_conn_id), application_name="tidemark connection test"
        )
        try:
            postgres_session.require_own_process(session, "source")
        except BaseException:
            session.close()
            raise
        return session

    def test_connection(self) -> tuple[bool, str]:
        """Whether a capture can begin there, and what the server is or lacks."""
        from tidemark.source.catalogue.inspection import read_server_facts

        try:
            with self.get_conn() as session:
                facts = read_server_facts(session)
        except TidemarkError as wrong:
            return False, str(wrong)
        service = f" on {facts.service.provider.name}" if facts.service else ""
        server = f"PostgreSQL {facts.major}{service}, database {facts.database}, role {facts.role}"
        missing = "; ".join(_missing(facts))
        return not missing, f"{server}: {missing or 'it can be captured'}"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": [],
            "relabeling": {"schema": "Database", "login": "Role"},
            "placeholders": {"port": "5432", "extra": '{"sslmode": "verify-full", "sslrootcert": "/path"}'},
        }


def _missing(facts: Any) -> Iterator[str]:
    if not facts.has_logical_wal:
        yield f"wal_level is {facts.wal_level}, and has to be logical"
    if not facts.replication:
        yield "the role may not use replication"
    if facts.standby:
        yield "it is a standby"
