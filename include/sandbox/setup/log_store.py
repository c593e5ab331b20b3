"""The log stores -> tidemark-log-store.jar beside it: `python -m sandbox.setup.log_store`.

The compiler is Janino, which is part of Spark: whoever has what the lock installs can build the jar, without a JDK, and
has the very same bytes. A test does it, so that the jar in the repository is what its source says.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import pyspark

from sandbox.checkout import this_checkout

FOLDER: Final = this_checkout().root / "spark_apps" / "log_store"
JAR: Final = FOLDER / "tidemark-log-store.jar"


def build(gateway: Any, jars: Path, into: Path) -> None:
    """Compile the sources in the JVM behind a py4j gateway, against Spark's jars and Delta's and S3A's in `jars`."""
    with tempfile.TemporaryDirectory() as folder:
        _compile(gateway, sorted(FOLDER.glob("*.java")), jars, Path(folder))
        classes = sorted(Path(folder).rglob("*.class"))
        with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
            for file in classes:
                # An entry without a time, not compressed: the same bytes at any time, whatever zlib is there.
                archive.writestr(zipfile.ZipInfo(file.relative_to(folder).as_posix()), file.read_bytes())


def _compile(gateway: Any, sources: list[Path], jars: Path, into: Path) -> None:
    files = gateway.jvm.java.io.File

    def listed(paths: list[Path]) -> Any:
        array = gateway.new_array(files, len(paths))
        for n, path in enumerate(paths):
            array[n] = files(str(path))
        return array

    compiler = gateway.jvm.org.codehaus.janino.CompilerFactory().newCompiler()
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    compiler.setClassPath(listed([*sorted(spark.glob("*.jar")), *sorted(jars.rglob("*.jar"))]))
    compiler.setDestinationDirectory(files(str(into)), False)
    for debug in (compiler.setDebugLines, compiler.setDebugSource, compiler.setDebugVars):
        debug(False)
    compiler.compile(listed(sources))


def main() -> int:
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()
    try:
        build(gateway, this_checkout().jars, JAR)
    finally:
        gateway.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
