"""An upgrade from this release to a made-up next one and back, as docs/operations.md has it: nothing is lost.

The next release has another version and one migration more. The older one leaves work that it has begun: a staged
batch, a plan whose first step is done, and a backfill with one chunk read.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from sandbox.checkout import Checkout, this_checkout
from sandbox.release.distributions import PARTS
from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, Shop, open_shop
from tests.airflow.installed_wheels import Installed, new_environment, wheels
from tests.support.airflow_home import REPOSITORY
from tests.support.migrations import NEWER, SCRIPT
from tidemark import failpoints

pytestmark = pytest.mark.thorough

NEXT = "99.0.0"
CHUNK_ROWS = 100
OLDER_ROWS = """
INSERT INTO shop.customers
    SELECT n, 'older than the slot', date '1970-01-01', '{}' FROM generate_series(20001, 20450) n;
"""
MIGRATIONS = Path("include/tidemark/ledger/migrations")


def next_release(folder: Path) -> Checkout:
    """The sources of a later release. Its programs are those of this checkout."""
    for part in (*PARTS, "dags", "docs/versions.md"):
        copy = shutil.copytree if (REPOSITORY / part).is_dir() else shutil.copy
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        copy(REPOSITORY / part, folder / part)
    (folder / "VERSION").write_text(f"{NEXT}\n")
    (folder / MIGRATIONS / f"{NEWER:04}_made_up.sql").write_text(SCRIPT)
    (folder / ".venv").symlink_to(this_checkout().venv)
    for made in ("logs", "tmp"):
        (folder / ".tidemark" / made).mkdir(parents=True)
    return Checkout(folder)


def capture(shop: Shop, **variables: str) -> tuple[int, str]:
    process = shop.airflow.run("dags", "test", "shop_capture", **variables)
    return process.returncode, process.stdout


def backfill(shop: Shop, **variables: str) -> tuple[int, str]:
    conf = json.dumps({"tables": ["shop.customers"], "chunk_rows": CHUNK_ROWS, "readers": 1})
    process = shop.airflow.run("dags", "test", "shop_backfill", "--conf", conf, **variables)
    return process.returncode, process.stdout


def chunks(shop: Shop) -> list[tuple[object, ...]]:
    """Of all backfills, oldest first: which one it belongs to, how many rows it has."""
    return shop.ledger_query("SELECT backfill, rows FROM tidemark.chunks ORDER BY read_at")


def history_versions(shop: Shop) -> dict[str, int]:
    """How many versions the Delta tables of `history` have, by table."""
    logs = (Path(shop.config.lake) / "shop" / "history").glob("*/*/_delta_log")
    return {log.parent.name: len(list(log.glob("*.json"))) for log in logs}


def migrate(shop: Shop, environment: Installed, *options: str) -> tuple[int, str]:
    command = [environment.python.with_name("tidemark"), "migrate", "shop", *options]
    process = subprocess.run(command, env=shop.airflow.environment(), capture_output=True, text=True)
    return process.returncode, process.stdout + process.stderr


def has_version(environment: Installed) -> object:
    return environment.says(
        "import json\nfrom importlib.metadata import version\nprint(json.dumps(version('tidemark-cdc')))"
    )


def test_an_upgrade_in_mid_run_and_the_way_back_lose_nothing(
    postgres: PostgresServer,
    new_metadata: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("releases")
    this, later = wheels(this_checkout(), folder / "this"), wheels(next_release(folder / "sources"), folder / "next")
    environment = new_environment(folder)
    environment.install(this)
    with open_shop(postgres, new_metadata, tmp_path_factory) as shop:
        shop.airflow.program = (str(environment.python), "-m", "airflow")
        shop.airflow.settings = environment.settings()
        shop.sql(OLDER_ROWS)
        shop.configure(health="warn")  # these rows are nowhere before the backfill
        shop.sound()
        shop.sql(FIRST_ORDERS)
        assert capture(shop)[0] == 0
        code, _ = backfill(shop, **{failpoints.VARIABLE: "read.after_chunk"})
        assert code == -signal.SIGKILL
        first_chunk = chunks(shop)
        assert [rows for _, rows in first_chunk] == [CHUNK_ROWS], "the older release read one chunk"
        with psycopg.connect(shop.ledger) as connection:  # as if the killed one had been dead for longer than a lease
            connection.execute("UPDATE tidemark.leases SET expires_at = clock_timestamp() - interval '1 second'")
        shop.sql(MORE_ORDERS)
        before = history_versions(shop)
        code, said = capture(shop, **{failpoints.VARIABLE: "merge.after_history"})
        assert code != 0
        assert "merge" in said
        assert history_versions(shop) != before, "the older release did one step of its plan"
        assert shop.differences() != {}

        environment.install(later)
        assert has_version(environment) == NEXT
        assert migrate(shop, environment, "--look")[0] == 3
        code, said = migrate(shop, environment)
        assert code == 0, said
        shop.sql("UPDATE shop.orders SET note = 'by the next release' WHERE customer < 20")
        code, said = capture(shop)
        assert code == 0, said[-6000:]
        code, said = backfill(shop)
        assert code == 0, said[-6000:]
        assert shop.differences() == {}
        assert chunks(shop)[:1] == first_chunk
        assert {chunk[0] for chunk in chunks(shop)} == {first_chunk[0][0]}, "it went on with the same backfill"
        assert shop.ledger_query("SELECT max(number) FROM tidemark.migrations") == [(NEWER,)]

        environment.install(this)
        shop.sql("UPDATE shop.orders SET note = 'seen by the older release' WHERE customer < 10")
        code, said = capture(shop)
        assert code != 0
        assert "LedgerIsNewer" in said
        environment.install(later)
        assert capture(shop)[0] == 0
        assert shop.differences() == {}
