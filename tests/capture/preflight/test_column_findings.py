"""What preflight says of columns that are not captured, or captured as text."""

from __future__ import annotations

import pytest

from tests.capture.preflight.shop import Shop, said, since_18
from tidemark.config import TableRule

LINE = (
    "CREATE TABLE shop.line (id int PRIMARY KEY, price numeric(8,2), pieces int, "
    "total numeric(12,2) GENERATED ALWAYS AS (price * pieces) STORED{virtual})"
)
VIRTUAL = ", double int GENERATED ALWAYS AS (pieces * 2) VIRTUAL"


@pytest.mark.parametrize("databases", [16], indirect=True)
def test_generated_columns_are_a_warning_before_18(shop: Shop) -> None:
    shop.sql(LINE.format(virtual=""))
    warning = said(shop.sound(), "generated_columns", "warning")
    assert "shop.line is captured without its generated column total (stored)" in warning
    assert "PostgreSQL 18 and newer" in warning


@since_18
def test_only_virtual_ones_are_missing_where_the_publication_has_the_others(shop: Shop) -> None:
    shop.sql(LINE.format(virtual=VIRTUAL))
    for _ in range(2):  # before the publication is made, and after
        warning = said(shop.sound(), "generated_columns", "warning")
        assert "its generated column double (virtual)" in warning
        assert "total" not in warning
    shop.sql(f"ALTER PUBLICATION {shop.config.publication} SET (publish_generated_columns = none)")
    warning = said(shop.sound(), "generated_columns", "warning")
    assert "its generated columns total (stored), double (virtual)" in warning
    assert "SET (publish_generated_columns = stored)" in warning


def test_a_column_that_is_left_out_is_no_finding(shop: Shop) -> None:
    shop.sql(LINE.format(virtual=""))
    shop.with_tables(TableRule("shop.line", leave_out=("total",), line=3))
    assert said(shop.sound(), "generated_columns", "warning") == ""


def test_columns_that_become_text_are_counted_with_the_lines_to_paste(shop: Shop) -> None:
    shop.sql(
        'CREATE TABLE shop."Legacy Price" (id int PRIMARY KEY, amount numeric, "per unit" numeric, fixed numeric(9,2))',
        "CREATE TABLE shop.grid (id int PRIMARY KEY, cells int[][], plain int[], decided int[][], rate numeric)",
    )
    shop.with_tables(TableRule("shop.*", line=3), TableRule("shop.grid", target={"decided": "text"}, line=4))
    report = shop.sound()
    numeric = said(report, "numeric", "note")
    assert "3 columns of 2 tables are numeric without a precision" in numeric
    assert '           - {name: shop.grid, target: {rate: "decimal(38,10)"}}\n' in numeric
    assert (
        '           - {name: "shop.\\"Legacy Price\\"", '
        'target: {amount: "decimal(38,10)", "per unit": "decimal(38,10)"}}\n' in numeric
    )
    arrays = said(report, "arrays", "note")
    assert "1 column of 1 table is declared with more than one dimension" in arrays
    assert "shop.grid.cells" in arrays
