"""What later preflights follow: the tables that the file names, in a publication of theirs or of somebody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.capture.preflight.shop import Shop, said
from tidemark.errors import (
    ChangesGone,
)


class TestFollowingTheFile:
    def test_a_table_of_the_file_joins_the_publication_and_one_taken_out_leaves_it(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)", "CREATE TABLE shop.carts (id int PRIMARY KEY)")
        shop.with_tables("shop.orders", "shop.lines")
        shop.sound()
        assert shop.published() == {"orders", "lines"}
        shop.with_tables("shop.orders", "shop.carts")
        report = shop.sound()
        assert shop.published() == {"orders", "carts"}
        assert "Added shop.carts" in said(report, "publication", "note")
        assert "Took shop.lines out" in said(report, "publication", "note")
        shop.sound()
        assert not shop.table_rows()["shop.lines"].life.is_captured
        assert shop.table_rows()["shop.carts"].life.is_captured

    def test_a_table_that_comes_back_needs_a_backfill_even_if_it_is_empty(self, shop: Shop) -> None:
        shop.sql("CREATE TABLE shop.lines (id int PRIMARY KEY)")
        shop.sound()
        shop.with_tables("shop.orders")
        shop.sound()
        shop.with_tables("shop.*")
        shop.sound()
        row = shop.table_rows()["shop.lines"]
        assert (row.life.is_captured, row.life.needs_backfill, row.backfill_kind) == (True, True, "rejoined")
        shop.sound()
        assert shop.table_rows()["shop.lines"].life.needs_backfill

    def test_a_table_dropped_and_created_again_joins_as_another_one(self, shop: Shop) -> None:
        shop.sound()
        shop.sql("DROP TABLE shop.orders", "CREATE TABLE shop.orders (id int PRIMARY KEY)")
        shop.sound()
        assert shop.published() == {"orders"}
        assert not shop.table_rows()["shop.orders"].life.is_captured
        assert shop.table_rows()["shop.orders~2"].life.keeps_its_promise  # it was seen empty

    def test_a_slot_that_was_dropped_is_created_again_and_the_gap_is_said_once(self, shop: Shop) -> None:
        shop.sound()
        assert not shop.table_rows()["shop.orders"].life.needs_backfill
        shop.drop_slot()
        shop.sql("INSERT INTO shop.orders VALUES (1)")
        with pytest.raises(ChangesGone):
            shop.preflight().raise_for_errors()
        assert shop.slots() == [shop.config.slot]
        shop.sound()
        generation = shop.generation()
        assert generation is not None
        assert generation.number == 2
        row = shop.table_rows()["shop.orders"]
        assert row.life.needs_backfill
        assert row.join_horizon is not None


class TestUnmanagedPublication:
    def test_the_owners_sql_is_printed_and_works(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        report = shop.preflight()
        text = said(report, "publication")
        assert "manage_publication: false" in text
        statement = text.partition("As owner of the tables: ")[2].rstrip(".")
        shop.sql(statement)
        shop.sound()
        assert shop.slots() == [shop.config.slot]

    def test_missing_tables_are_named_with_the_statement_and_others_only_mentioned(self, shop: Shop) -> None:
        shop.config = replace(shop.config, manage_publication=False)
        shop.sql(
            "CREATE TABLE shop.lines (id int PRIMARY KEY)",
            "CREATE TABLE public.other (id int PRIMARY KEY)",
            f"CREATE PUBLICATION {shop.config.publication} FOR TABLE shop.orders, public.other",
        )
        report = shop.sound()
        statement = f"ALTER PUBLICATION {shop.config.publication} ADD TABLE ONLY shop.lines"
        assert statement in said(report, "publication", "table")
        assert "public.other" in said(report, "publication", "note")
        shop.sql(f"ALTER PUBLICATION {shop.config.publication} ADD TABLE shop.lines")
        shop.sound()
        assert shop.published() == {"orders", "lines", "other"}
