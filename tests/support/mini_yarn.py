"""A YARN cluster in one process, Hadoop's own MiniYARNCluster: `python -m tests.support.mini_yarn <folder> <jars>`.

It writes `yarn-site.xml` into the folder and ends when its input does. Executors and drivers are processes as YARN
starts them, with the rights of this user; one NodeManager, on the loopback address.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

_SCHEDULERS = "org.apache.hadoop.yarn.server.resourcemanager.scheduler"
SETTINGS = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "6144",  # room for two applications
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.env-whitelist": "JAVA_HOME",
    # The capacity scheduler wants a file of its own.
    "yarn.resourcemanager.scheduler.class": f"{_SCHEDULERS}.fifo.FifoScheduler",
}


def main(folder: str, jars: str) -> None:
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.extraClassPath", os.pathsep.join(str(jar) for jar in sorted(Path(jars).glob("*.jar"))))
    gateway = launch_gateway(conf)
    try:
        configuration = gateway.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in SETTINGS.items():
            configuration.set(name, value)
        cluster = gateway.jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("tidemark", 1, 1, 1)
        cluster.init(configuration)
        cluster.start()
        site = Path(folder) / "yarn-site.xml"
        out = gateway.jvm.java.io.FileOutputStream(str(site.with_suffix(".new")))
        cluster.getConfig().writeXml(out)
        out.close()
        site.with_suffix(".new").rename(site)
        sys.stdin.read()
        cluster.stop()
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
