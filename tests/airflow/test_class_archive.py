"""The archive of a driver's classes: made once, used where it fits, never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark_airflow.driver.class_archive import FOLDER_VARIABLE, class_archive


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives lie, with a Java and a Spark of the test's."""
    folder, java, spark = (tmp_path / name for name in ("archives", "java", "spark"))
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    for variable in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.delenv(variable, raising=False)
    for file in (java / "bin" / "java", java / "lib" / "server" / "classes.jsa", spark / "jars" / "spark.jar"):
        file.parent.mkdir(parents=True)
        file.touch()
    (java / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\n')
    return folder


@contextmanager
def driver(options: str | None = "", *, ends_well: bool = True) -> Iterator[str]:
    """What its JVM does with the flags: it leaves the archive that it is told to make."""
    with class_archive(options) as archive:
        for flag in archive.flags.split():
            if flag.startswith("-XX:ArchiveClassesAtExit="):
                Path(flag.partition("=")[2]).write_text("classes")
        yield archive.flags
        archive.ended_well = ends_well


def flags_of_a_driver(options: str | None = "", *, ends_well: bool = True) -> str:
    with driver(options, ends_well=ends_well) as flags:
        return flags


def test_the_first_driver_makes_what_the_next_ones_use(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert flags_of_a_driver().startswith("-XX:ArchiveClassesAtExit=")
    assert "archives its classes when its work is done, once: some 20 s of this task" in caplog.text
    caplog.clear()
    (archive,) = folder.iterdir()
    assert archive.suffix == ".jsa"
    for _ in range(2):
        assert flags_of_a_driver().startswith(f"-XX:SharedArchiveFile={archive} ")
    assert caplog.text == ""


def test_one_driver_makes_it_and_those_beside_it_start_without(folder: Path) -> None:
    with driver() as first:
        assert first
        assert flags_of_a_driver() == ""
    assert "SharedArchiveFile" in flags_of_a_driver()


def test_what_a_driver_left_that_failed_is_no_archive(folder: Path) -> None:
    flags_of_a_driver(ends_well=False)
    assert list(folder.iterdir()) == []
    assert "ArchiveClassesAtExit" in flags_of_a_driver()


def test_a_driver_that_was_killed_is_followed_by_another_the_next_day(folder: Path) -> None:
    flags_of_a_driver()
    (archive,) = folder.iterdir()
    mark = archive.with_suffix(".making")
    archive.unlink()
    mark.touch()
    assert flags_of_a_driver() == ""
    os.utime(mark, (1, 1))
    assert "ArchiveClassesAtExit" in flags_of_a_driver()


def test_another_spark_or_java_gets_an_archive_of_its_own_and_the_old_one_goes(folder: Path) -> None:
    for change in ("spark/jars/spark.jar", "java/release"):
        flags_of_a_driver()
        (before,) = folder.iterdir()
        with (folder.parent / change).open("a") as file:
            file.write("\n# newer")
        assert "ArchiveClassesAtExit" in flags_of_a_driver()
        (after,) = folder.iterdir()
        assert after != before


@pytest.mark.parametrize(
    "options", [None, "-Xmx2g -Xshare:off", "-XX:SharedArchiveFile=/my.jsa", "-XX:+AutoCreateSharedArchive"]
)
def test_a_driver_elsewhere_or_with_flags_of_its_own_is_left_alone(folder: Path, options: str | None) -> None:
    assert flags_of_a_driver(options) == ""
    assert not folder.exists()


def test_a_folder_that_others_write_is_not_trusted(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert flags_of_a_driver() == ""


@pytest.mark.parametrize("missing", ["java/lib/server/classes.jsa", "java/release", "spark/jars/spark.jar"])
def test_what_is_unusual_means_no_archive(folder: Path, missing: str) -> None:
    (folder.parent / missing).unlink()
    shutil.rmtree(folder.parent / "spark" / "jars") if "spark" in missing else None
    assert flags_of_a_driver() == ""


@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_a_folder_with_files_on_the_class_path_means_no_archive(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The JVM makes none then, and its driver would exit with 1 behind all of its work."""
    files = folder.parent / "files"
    files.mkdir()
    monkeypatch.setenv(variable, str(files))
    with driver(ends_well=False) as flags:
        assert flags.startswith("-XX:ArchiveClassesAtExit=")
    (files / "core-site.xml").touch()
    assert flags_of_a_driver() == ""


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", None])
def test_spark_settings_are_named_and_an_empty_folder_stands_on_the_class_path_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    settings = settings_of(folder, monkeypatch, variable)
    with class_archive("") as archive:
        assert (archive.environment, archive.properties_file) == ({}, None)
    for file in ("log4j2.properties", "fairscheduler.xml.template"):
        (settings / file).touch()
    with class_archive("") as archive:
        assert archive.properties_file is None
        assert [*Path(archive.environment["SPARK_CONF_DIR"]).iterdir()] == []
    (settings / "spark-defaults.conf").touch()
    for _ in range(2):
        with class_archive("") as archive:
            assert archive.flags.startswith("-XX:ArchiveClassesAtExit=")
            assert archive.properties_file == str(settings / "spark-defaults.conf")
            assert [*Path(archive.environment["SPARK_CONF_DIR"]).iterdir()] == []


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", None])
@pytest.mark.parametrize(
    ("file", "ships_settings"),
    [("hive-site.xml", False), ("spark-env.sh", False), ("java-opts", False), ("spark-defaults.conf", True)],
)
def test_settings_that_driver_or_executors_find_in_their_folder_stay_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, file: str, ships_settings: bool
) -> None:
    (settings_of(folder, monkeypatch, variable) / file).touch()
    with class_archive("", ships_settings=ships_settings) as archive:
        assert (archive.flags, archive.environment, archive.properties_file) == ("", {}, None)


@pytest.mark.parametrize("is_folder", [False, True], ids=["a file", "a folder with a file"])
def test_settings_for_which_there_is_no_empty_folder_stay_where_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    (settings_of(folder, monkeypatch, None) / "spark-defaults.conf").touch()
    in_their_place = folder / "no-settings"
    in_their_place.parent.mkdir(mode=0o700)
    if is_folder:
        in_their_place.mkdir()
        (in_their_place / "hive-site.xml").touch()
    else:
        in_their_place.touch()
    with class_archive("") as archive:
        assert (archive.flags, archive.environment, archive.properties_file) == ("", {}, None)


def settings_of(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> Path:
    """An empty folder of Spark's settings."""
    settings = folder.parent / "spark" / "conf"
    settings.mkdir()
    if variable is not None:
        monkeypatch.setenv(variable, str(settings))
    return settings


def test_an_older_java_does_not_know_the_flags(folder: Path) -> None:
    (folder.parent / "java" / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert flags_of_a_driver() == ""


def test_nobody_who_says_so_gets_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert flags_of_a_driver() == ""


def test_java_itself_makes_an_archive_uses_it_and_starts_without_one_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "archives"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "no settings"))

    def java() -> tuple[str, str]:
        with class_archive("") as archive:
            home = os.environ.get("JAVA_HOME")
            program = f"{home}/bin/java" if home else "java"
            done = subprocess.run(
                [program, *archive.flags.split(), "-Xlog:class+load", "-cp", str(tmp_path), "--list-modules"],
                capture_output=True,
                text=True,
                check=True,
            )
            archive.ended_well = True
            return archive.flags, done.stdout + done.stderr

    flags, _ = java()
    assert "ArchiveClassesAtExit" in flags
    (made,) = (tmp_path / "archives").iterdir()
    flags, said = java()
    assert "SharedArchiveFile" in flags
    assert "shared objects file (top)" in said
    made.chmod(0o600)
    made.write_bytes(made.read_bytes()[:100])
    flags, said = java()
    assert "SharedArchiveFile" in flags
    assert "shared objects file (top)" not in said
    assert "java.base@" in said
