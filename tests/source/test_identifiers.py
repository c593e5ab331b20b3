"""Names that people copy are quoted exactly where PostgreSQL itself would quote them."""

from __future__ import annotations

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.support import servers
from tidemark.names import TableName
from tidemark.source.catalogue.identifiers import qualified, quoted


@pytest.mark.parametrize("version", servers.EACH)
def test_names_are_quoted_as_the_server_quotes_them(version: int, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(servers.NAMES[version])
    with psycopg.connect(server.conninfo()) as connection:
        words = [
            word for (word,) in connection.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')")
        ]
        names = [*words, "plain", "_1", "1st", "Mixed", "a b", 'a"b', '"', "a.b", "äöü", "x$"]
        for name in names:
            (expected,) = connection.execute("SELECT quote_ident(%s)", (name,)).fetchone() or ()
            assert quoted(name) == expected


def test_a_table_is_quoted_by_its_parts() -> None:
    assert qualified(TableName("shop", "order")) == 'shop."order"'
    assert qualified(TableName("a.b", "t")) == '"a.b".t'
