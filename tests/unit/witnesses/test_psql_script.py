"""A psql script is cut only where psql waits for a new statement."""

from __future__ import annotations

import pytest

from tests.witnesses.psql_script import pieces


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1;\n",
        "SELECT 'a;\nb';\n",
        "SELECT E'it\\'s;\n';\n",
        'SELECT 1 AS "a;\nb";\n',
        "DO $x$\nBEGIN NULL; END;\n$x$;\n",
        "SELECT 1 /* one;\n /* two */ ;\n */ + 1;\n",
        "SELECT 1 -- it's\n  + 1;\n",
        "CREATE RULE r AS ON INSERT TO t DO (DELETE FROM u;\n DELETE FROM v);\n",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC\n SELECT CASE WHEN true THEN 1 END;\n SELECT 2;\nEND;\n",
        "COPY t FROM stdin;\n1\ta;b\n'\n\\.\n",
        "\\COPY t FROM STDIN\n1\n'\n\\.\n",
        "\\if :x\nSELECT 1;\n\\endif\n",
        "SELECT 1 AS one\n\\gset\n",
    ],
)
def test_a_statement_is_one_piece(statement: str) -> None:
    assert [*pieces(statement + "SELECT 2;\n")] == [statement, "SELECT 2;\n"]


def test_pieces_are_the_whole_script() -> None:
    script = "-- first\n\nSELECT 1; SELECT\n2;\nBEGIN;\nCOMMIT;\nSELECT 3"
    assert "".join(pieces(script)) == script
    assert [*pieces(script)][-1] == "SELECT 3"
