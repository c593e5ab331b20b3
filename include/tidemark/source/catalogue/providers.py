"""Recognises the service that runs the source's server by its roles, and checks the settings of that service.

The mark of a service is one of its roles (`rds_superuser`, `cloudsqlsuperuser`, …), since every session may read the
list of roles. The remedies name the service's own setting for `wal_level`, and who may grant replication there.
docs/recipes has a page for each service. Sources: the documentation that the pages name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg

from tidemark.findings import Finding
from tidemark.postgres.postgres_session import logs_in_by_token, one_row
from tidemark.wording import duration

# Neon removes a slot that nobody reads for so long while another slot of the project is read.
NEON_IDLE_SLOT_S: Final = 40 * 3600


@dataclass(frozen=True, slots=True)
class Provider:
    """A service that runs PostgreSQL, with its remedies.

    - `page` is the page in docs/recipes.
    - `mark` is the role that the service's servers have.
    - `switch` is the service's setting that makes wal_level logical, "" without one.
    - `token_switch` is the setting that lets a walsender log in by a token, "" where none is needed.
    - `wal_level` is the remedy for a wal_level that is not logical.
    - `replication` is the statement that lets a role stream, with {role}.
    - `trigger_by` is who may create an event trigger, "" for nobody.
    """

    name: str
    page: str
    mark: str
    wal_level: str
    replication: str
    trigger_by: str
    switch: str = ""
    token_switch: str = ""


RDS: Final = Provider(
    name="Amazon RDS",
    page="rds.md",
    mark="rds_superuser",
    switch="rds.logical_replication",
    token_switch="rds.iam_auth_for_replication",
    wal_level="Set rds.logical_replication to 1 in the instance's parameter group, and reboot the instance",
    replication="GRANT rds_replication TO {role}",
    trigger_by="a member of rds_superuser",
)
AURORA: Final = replace(
    RDS,
    name="Amazon Aurora",
    page="aurora.md",
    wal_level="Set rds.logical_replication to 1 in the cluster's parameter group, and reboot the writer",
)
CLOUD_SQL: Final = Provider(
    name="Cloud SQL",
    page="cloud-sql.md",
    mark="cloudsqlsuperuser",
    switch="cloudsql.logical_decoding",
    wal_level="Set the database flag cloudsql.logical_decoding to on, which restarts the instance",
    replication="As a member of cloudsqlsuperuser: ALTER ROLE {role} REPLICATION",
    trigger_by="a member of cloudsqlsuperuser",
)
ALLOYDB: Final = Provider(
    name="AlloyDB",
    page="alloydb.md",
    mark="alloydbsuperuser",
    switch="alloydb.logical_decoding",
    wal_level="Set the database flag alloydb.logical_decoding to on, which restarts the instance",
    replication="As a member of alloydbsuperuser: ALTER ROLE {role} REPLICATION",
    trigger_by="a member of alloydbsuperuser",
)
AZURE: Final = Provider(
    name="Azure Database for PostgreSQL",
    page="azure.md",
    mark="azure_pg_admin",
    wal_level="Set the server parameter wal_level to logical, save it, and restart the server",
    replication="As the server's administrator: ALTER ROLE {role} REPLICATION",
    trigger_by="a member of azure_pg_admin, where the server lets it",
)
NEON: Final = Provider(
    name="Neon",
    page="neon.md",
    mark="neon_superuser",
    wal_level="Enable logical replication in the project's settings, which restarts its computes",
    replication="Create the role in Neon's console or by its API: such a role may stream",
    trigger_by="a member of neon_superuser",
)
SUPABASE: Final = Provider(
    name="Supabase",
    page="supabase.md",
    mark="supabase_admin",
    wal_level="Supabase's servers have wal_level logical: ask its support what changed it",
    replication="As postgres: ALTER ROLE {role} REPLICATION",
    trigger_by="the role postgres",
)
PROVIDERS: Final = (RDS, AURORA, CLOUD_SQL, ALLOYDB, AZURE, NEON, SUPABASE)


@dataclass(frozen=True, slots=True)
class Service:
    """The provider of a server, the values of the switches that the server has, and whether the session logged in by a
    token."""

    provider: Provider
    settings: dict[str, str] = field(default_factory=dict)
    by_token: bool = False


def read_service(connection: psycopg.Connection[Any]) -> Service | None:
    """The service that runs the server; None for a server of one's own and for an unknown service."""
    marks = [provider.mark for provider in PROVIDERS]
    roles, is_aurora, settings = one_row(
        connection,
        """
        SELECT (SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname = ANY (%s)),
               EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version'),
               (SELECT jsonb_object_agg(name, current_setting(name, true)) FROM unnest(%s::text[]) AS name)
        """,
        (marks, [name for provider in PROVIDERS for name in (provider.switch, provider.token_switch) if name]),
    )
    fitting = [provider for provider in PROVIDERS if provider.mark in (roles or ())]
    if not fitting:
        return None
    provider = AURORA if fitting[0] is RDS and is_aurora else fitting[0]
    known = {name: value for name, value in settings.items() if value is not None}
    return Service(provider, known, by_token=logs_in_by_token(connection))


def service_findings(service: Service, *, wal_level: str, longest_gap_s: float | None) -> Iterator[Finding]:
    """The name of the service, a switch that waits for a restart or keeps tokens out, and the slots that Neon
    removes."""
    provider = service.provider
    yield Finding.note("provider", f"The source is {provider.name}", f"Its settings: docs/recipes/{provider.page}")
    if service.settings.get(provider.switch) == "on" and wal_level != "logical":
        yield Finding.warning(
            "provider",
            f"{provider.switch} is on, and wal_level is still {wal_level}",
            "Restart the server: the setting takes effect then",
        )
    if service.by_token and service.settings.get(provider.token_switch) in ("off", "0"):
        yield Finding.error(
            "provider",
            f"The role logs in by a token, and {provider.token_switch} is off",
            f"Set {provider.token_switch} to 1 in the parameter group: without it no drain can log in",
        )
    if provider is NEON and (longest_gap_s is None or longest_gap_s >= NEON_IDLE_SLOT_S / 2):
        gap = "the schedule does not say how often the DAG runs"
        if longest_gap_s is not None:
            gap = f"by the schedule up to {duration(longest_gap_s)} pass between two runs"
        yield Finding.warning(
            "provider",
            f"Neon removes a slot that is idle for {duration(NEON_IDLE_SLOT_S)} while another is in use, and {gap}",
            "Run the DAG at least every few hours",
        )
