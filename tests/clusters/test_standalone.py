"""Merges on a standalone Spark cluster: a Master, two Workers and the driver on machines of their own.

The Workers have Spark and Java, and nothing of Tidemark: no Python environment, no library, no jar on their class path
unless a test says so. Where this machine may make network namespaces (as root), each machine is one, with a view of the
files of its own; elsewhere they are loopback addresses (tests/support/machines.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

import psutil
import pytest

from sandbox.services.postgres import wait_for
from tests.clusters.halting import halted
from tests.faults import workload
from tests.faults.rows_from_before import old_tables
from tests.support import judge
from tests.support.airflow_home import delta_jars
from tests.support.on_cluster import OnCluster, RunningCluster
from tests.support.s3_proxy import Proxy, in_front_of
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.thorough

NewShop = Callable[..., OnCluster]


def _both(cluster: RunningCluster) -> list[psutil.Process] | None:
    executors = cluster.executors()
    return executors if len(executors) == 2 else None


def test_capture_backfill_and_verify_end_equal_with_the_lake_in_a_shared_folder(new_shop: NewShop) -> None:
    shop = new_shop()
    workload.create(shop)
    capture_backfill_and_verify(shop)


def test_and_with_the_lake_in_a_bucket_and_the_jars_on_every_machine(
    new_shop: NewShop, cluster: RunningCluster, s3_server: S3Server
) -> None:
    """Then the driver sends nothing to an executor but the log store's jar."""
    shop = new_shop()
    shop.variables["TIDEMARK_SPARK_JARS"] = f"local:{delta_jars()}"
    with in_front_of(s3_server.url, cluster.here) as proxy:
        shop.put_lake_on_s3(proxy.url, s3_server.new_bucket())
        workload.create(shop)
        capture_backfill_and_verify(shop)
    *_, last = cluster.applications(shop.config.pipeline)
    logs = [log.read_text() for log in cluster.spark.folder.glob(f"spark-worker-*/{last}/*/stderr")]
    fetched = {name for log in logs for name in re.findall(r"Fetching spark://\S+/(\S+) with timestamp", log)}
    assert fetched == {"tidemark-log-store.jar"}


def capture_backfill_and_verify(shop: OnCluster) -> None:
    workload.change(shop)
    shop.run()
    old = old_tables(shop)
    shop.backfill(*old.tables, chunk_rows=5)
    assert judge.wrongs(shop) == []
    proven = shop.verify().tables
    assert {table.table for table in proven} == set(judge.captured(shop))
    assert [str(table) for table in proven if table.unproven or table.outcome.differences] == []
    assert judge.second_run_changes_nothing(shop) == []


def test_an_executor_killed_with_a_task_in_its_hands_costs_nothing(new_shop: NewShop, cluster: RunningCluster) -> None:
    shop = new_shop(**{"spark.ui.enabled": "true"})
    workload.create(shop)
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    with halted(shop, "merge.before_history") as (driver, task):
        executors = wait_for("both executors run", lambda: _both(cluster), 60)
        victim = executors[0]
        victim.suspend()
        driver.resume()
        number = victim.cmdline()[victim.cmdline().index("--executor-id") + 1]
        wait_for(f"executor {number} has a task", lambda: cluster.active_tasks(number) > 0, 120)
        victim.kill()
        task.join(timeout=300)
    shop.confirm()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.parametrize(
    ("lake", "at"),
    [("folder", "merge.before_current"), ("bucket", "merge.before_history"), ("bucket", "merge.before_current")],
)
def test_a_driver_that_outlives_its_task_changes_nothing(
    lake: str, at: str, new_shop: NewShop, cluster: RunningCluster, s3_server: S3Server
) -> None:
    """Its worker is lost, its leases end, the next run merges further, and then it goes on (R5). Until it ends, it
    keeps the executors that it has. In a bucket its next commit is a version that is there already: one put of two."""
    shop = new_shop(**{"spark.cores.max": "1"})
    with in_front_of(s3_server.url, cluster.here) as proxy:
        if lake == "bucket":
            shop.put_lake_on_s3(proxy.url, s3_server.new_bucket())
        workload.create(shop)
        workload.change(shop)
        shop.begin_run()
        shop.drain()
        with halted(shop, at) as (driver, task):
            shop.let_leases_end()
            workload.change(shop)
            shop.run("the next run")
            assert judge.wrongs(shop) == []
            proxy.forget()
            driver.resume()
            task.join(timeout=300)
        assert judge.wrongs(shop) == []
        assert judge.second_run_changes_nothing(shop) == []
        if at == "merge.before_history":
            assert _commits_asked_for(proxy), "the driver did not come to a commit"


def _commits_asked_for(proxy: Proxy) -> list[str]:
    """The versions of history that were to be put, some of which may have been there."""
    puts = [unquote(request.target) for request in proxy.requests if request.method == "PUT"]
    return [target for target in puts if re.search(r"/history/.*/_delta_log/[0-9]{20}\.json$", target)]
