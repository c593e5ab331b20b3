"""The drain against a real server: what is staged, where batches end, what a second try does."""

from __future__ import annotations

from tests.capture.conftest import Pipeline


def test_a_transaction_is_staged_whole_and_in_order(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2), note text)")
    pipeline.begin()
    pipeline.execute(
        "BEGIN",
        "INSERT INTO orders SELECT i, i * 1.5, 'n' || i FROM generate_series(1, 3) i",
        "UPDATE orders SET note = NULL WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "COMMIT",
    )
    result = pipeline.drain()

    assert result.reached_target
    assert result.rows == 5
    rows = pipeline.staged("public.orders")
    assert [(r["_op"], r["id"], r["note"]) for r in rows] == [
        ("insert", 1, "n1"),
        ("insert", 2, "n2"),
        ("insert", 3, "n3"),
        ("update", 2, None),
        ("delete", 3, None),
    ]
    assert [r["_ordinal"] for r in rows] == [0, 1, 2, 3, 4]
    assert len({(r["_commit_lsn"], r["_xid"], r["_committed_at"]) for r in rows}) == 1
