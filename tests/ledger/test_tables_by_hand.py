"""Which table somebody means at the command line, or on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipeline import pipeline_config
from tidemark.errors import TableUnknown
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import Ledger
from tidemark.ledger.staged.generations import Generation
from tidemark.observe.table_commands import row_of

# The last two look alike.
TABLES = ("s.orders", 's."größe"', 's."a*b"', '"a.b".c', 'a."b.c"')


def test_a_table_is_found_by_its_id_and_as_it_is_shown(book: Ledger, generation: Generation, tmp_path: Path) -> None:
    config = pipeline_config("shop", tmp_path, ())
    tables.add(book, *TABLES)
    for table in TABLES:
        assert row_of(book, config, table).table == table
    assert row_of(book, config, "s.größe").table == TABLES[1]
    with pytest.raises(TableUnknown, match=r"did you mean s\.orders\?"):
        row_of(book, config, "s.order")
