"""Jars come from a Maven repository by the machine's own spark-submit, and only those that were published."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.support.remedies import Told
from tidemark.__main__ import main
from tidemark.errors import JarsDiffer, JarsUnresolved
from tidemark.spark_submit import spark_jars
from tidemark.spark_submit.jar_download import fetch, unresolved
from tidemark.spark_submit.jar_versions import NEWEST_SPARK, Jar, JarSet, delta_jars


class Repository:
    """A Maven repository in a folder, as DEFAULT_ARTIFACT_REPOSITORY may name one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jar = Jar("small", hashlib.sha256(b"right").hexdigest(), "example.tidemark", "1.0")
        self.wanted = JarSet("a test", (self.jar,), (self.jar.coordinates,), ())
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "TIDEMARK_"))},
            "DEFAULT_ARTIFACT_REPOSITORY": folder.as_uri() + "/",
            "HOME": str(folder / "home"),
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # each JVM here lives for seconds
        }

    def has(self, content: bytes) -> None:
        place = self.folder / "example" / "tidemark" / "small" / "1.0"
        place.mkdir(parents=True, exist_ok=True)
        coordinates = "<groupId>example.tidemark</groupId><artifactId>small</artifactId><version>1.0</version>"
        pom = f"<project><modelVersion>4.0.0</modelVersion>{coordinates}</project>"
        (place / "small-1.0.pom").write_text(pom)
        (place / "small-1.0.jar").write_bytes(content)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "repository"
    folder.mkdir()
    return Repository(folder)


@pytest.mark.walks("JarsUnresolved", "JarsDiffer")
def test_a_jar_is_taken_by_its_hash_and_fetched_once(repository: Repository, tmp_path: Path, told: Told) -> None:
    into = tmp_path / "jars"
    with told(JarsUnresolved, "example.tidemark#small;1.0", "Run `tidemark jars` once"):
        fetch(repository.wanted, into, repository.environment)
    repository.has(b"wrong")
    with told(JarsDiffer, "example.tidemark:small:1.0", "run `tidemark jars` again"):
        fetch(repository.wanted, into, repository.environment)
    assert not into.exists()
    repository.has(b"right")
    assert fetch(repository.wanted, into, repository.environment) == [repository.jar]
    assert (into / "small-1.0.jar").read_bytes() == b"right"
    gone = {**repository.environment, "DEFAULT_ARTIFACT_REPOSITORY": "http://127.0.0.1:1/"}
    assert fetch(repository.wanted, into, gone) == []
    assert not list(repository.folder.glob("home/.ivy2*")), "the cache of applications that run was used"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["	:: io.delta#x;1: not found", "[unresolved dependency: io.delta#x;1: not found]"], "io.delta#x;1"),
        (["java.lang.RuntimeException: [download failed: a#b;1!b.jar, download failed: c#d;2!d.jar]"],
         "a#b;1!b.jar, c#d;2!d.jar"),
        (["	at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:5)"],
         "the packages of spark.jars.packages"),
        (["java.lang.OutOfMemoryError: Java heap space"], None),
    ],
)  # fmt: skip
def test_output_of_spark_submit_that_tells_what_it_did_not_get(lines: list[str], expected: str | None) -> None:
    assert unresolved(lines) == expected


class TestTheFolderOfThisPythonEnvironment:
    @pytest.fixture
    def machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
        (tmp_path / "spark" / "jars").mkdir(parents=True)
        (tmp_path / "spark" / "jars" / f"spark-core_2.13-{NEWEST_SPARK}.7.jar").touch()
        return {"SPARK_HOME": str(tmp_path / "spark")}

    def fill(self, machine: dict[str, str]) -> str:
        folder = spark_jars.fetched_folder(machine)
        assert folder is not None
        folder.mkdir(parents=True)
        jar = folder / delta_jars().jars[0].name
        jar.touch()
        return str(jar)

    def test_is_where_drivers_have_their_jars_from(self, machine: dict[str, str]) -> None:
        assert "delta-spark" not in (spark_jars.jars("/lake", machine, {}) or "")
        jar = self.fill(machine)
        assert (spark_jars.jars("/lake", machine, {}) or "").split(",")[0] == jar
        assert spark_jars.jars("hdfs://host/lake", machine, {}) == jar
        settings = {"spark.jars": "/other.jar"}
        assert (spark_jars.jars("/lake", machine, settings) or "").split(",")[:2] == ["/other.jar", jar]

    @pytest.mark.parametrize(
        "settings",
        [{"spark.jars.packages": delta_jars().roots[0]}, {"spark.jars": "/delta-spark_1.jar"}],
        ids=lambda settings: next(iter(settings)),
    )
    def test_gives_way_to_what_a_setting_names(self, machine: dict[str, str], settings: dict[str, str]) -> None:
        jar = self.fill(machine)
        assert jar not in (spark_jars.jars("/lake", machine, settings) or "")

    def test_gives_way_to_the_variable_and_to_spark_itself(self, machine: dict[str, str], tmp_path: Path) -> None:
        jar = self.fill(machine)
        assert jar not in (spark_jars.jars("/lake", {**machine, "TIDEMARK_SPARK_JARS": "/some.jar"}, {}) or "")
        (tmp_path / "spark" / "jars" / "delta-spark_4.jar").touch()
        assert jar not in (spark_jars.jars("/lake", machine, {}) or "")

    def test_is_that_of_one_spark(self, machine: dict[str, str], tmp_path: Path) -> None:
        self.fill(machine)
        (core,) = (tmp_path / "spark" / "jars").iterdir()
        core.rename(core.with_name("spark-core_2.13-3.0.0.jar"))
        assert spark_jars.fetched(machine) is None

    def test_the_command_fills_it(
        self, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("TIDEMARK_SPARK_JARS", raising=False)
        monkeypatch.setenv("SPARK_HOME", machine["SPARK_HOME"])
        monkeypatch.setattr("tidemark.command_line.jars_command.fetch", lambda wanted, *_: list(wanted.jars))
        assert main(["jars", "s3"]) == 0
        said = capsys.readouterr().out
        assert "5 jars for Delta Lake: fetched 5" in said
        assert "36 jars for S3" in said
        assert str(spark_jars.fetched_folder(machine)) in said
        assert main(["jars", "s4"]) == 2
        assert "s3, gcs, azure" in capsys.readouterr().out
