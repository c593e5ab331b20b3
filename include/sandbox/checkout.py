"""Where everything lies in this checkout, and the environment in which its programs run. Standard library only.

Everything that is made lies under .venv and .tidemark (PostgreSQL as root: also /var/tmp/tidemark-*, see `postgres`),
so that `make clean` can remove exactly that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Variables by which the machine's own Python, Spark or Airflow would get into ours.
_FOREIGN = ("PYTHONHOME", "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR")
# Many images of containers set it. Every process that is started would compile Airflow or Spark's Python anew, which is
# one to three seconds of CPU for each.
_SLOW = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True, slots=True)
class Checkout:
    """One checkout of the repository."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def made(self) -> Path:
        return self.root / ".tidemark"

    @property
    def jars(self) -> Path:
        return self.made / "jars"

    @property
    def logs(self) -> Path:
        return self.made / "logs"

    @property
    def stamps(self) -> Path:
        return self.made / "stamps"

    @property
    def java_home(self) -> Path | None:
        """The Java that set-up found, None before set-up."""
        noted = self.made / "java_home"
        return Path(noted.read_text().strip()) if noted.exists() else None

    def environment(self, machine: Mapping[str, str]) -> dict[str, str]:
        """The variables of a child process: the machine's, less what would bring in foreign programs or slow ours down,
        and ours."""
        left_out = (*_FOREIGN, _SLOW)
        env = {k: v for k, v in machine.items() if k not in left_out and not k.startswith("AIRFLOW_")}
        path = [str(self.venv / "bin")]
        if (java := self.java_home) is not None:
            env["JAVA_HOME"] = str(java)
            path.append(str(java / "bin"))
        # Airflow's tasks and Spark's Python talk to this machine alone; a proxy must not be asked.
        here = "127.0.0.1,localhost"
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [machine.get(name), here]))
        return env | {
            "PATH": os.pathsep.join([*path, machine.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(self.venv),
            "PYTHONPATH": str(self.root / "include"),
            "PYTHONPYCACHEPREFIX": str(self.made / "cache" / "python"),
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            # Named, since Spark's own search for it stumbles over a space in the path.
            "SPARK_HOME": str(self.venv / "lib" / "python3.11" / "site-packages" / "pyspark"),
            "SPARK_CONF_DIR": str(self.made / "spark"),
            "SPARK_LOCAL_DIRS": str(self.made / "tmp" / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TIDEMARK_SPARK_JARS": str(self.jars),
            "TIDEMARK_JVM_ARCHIVES": str(self.made / "cache" / "java"),
        }


def this_checkout() -> Checkout:
    return Checkout(Path(__file__).resolve().parents[2])
