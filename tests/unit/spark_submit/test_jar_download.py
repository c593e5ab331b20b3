"""What Maven or Ivy have on this machine is taken from there, by its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidemark.errors import JarsDiffer
from tidemark.spark_submit import jar_download
from tidemark.spark_submit.jar_versions import DELTA, Jar, JarSet


def jar_set(*names: str) -> JarSet:
    jars = tuple(Jar(name, hashlib.sha256(name.encode()).hexdigest()) for name in names)
    return JarSet("a test", jars, tuple(jar.coordinates for jar in jars), ())


def test_jars_that_maven_or_ivy_has_need_no_network(tmp_path: Path) -> None:
    wanted, home, into = jar_set("one", "two", "three"), tmp_path / "home", tmp_path / "jars"
    one, two, three = wanted.jars
    cached = {
        one: home / ".m2" / "repository" / "io" / "delta" / "one" / DELTA / one.file,
        two: home / ".ivy2.5.2" / "jars" / f"io.delta_{two.file}",
        three: home / ".ivy2" / "cache" / "io.delta" / "three" / "jars" / three.file,
    }
    for jar, file in cached.items():
        file.parent.mkdir(parents=True)
        file.write_text(jar.artifact)
    assert jar_download.fetch(wanted, into, {"HOME": str(home), "PATH": ""}) == [one, two, three]
    assert sorted(f.name for f in into.iterdir()) == sorted(jar.file for jar in wanted.jars)


@pytest.mark.parametrize("answer", ["one", "other"])
def test_a_kept_jar_with_another_hash_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    wanted = jar_set("one")
    name = f"io.delta_{wanted.jars[0].file}"
    cached = tmp_path / ".ivy2" / "jars" / name
    cached.parent.mkdir(parents=True)
    cached.write_text("wrong")

    def resolve(_: object, __: object, ivy: Path, ___: object) -> None:
        (ivy / "jars").mkdir(parents=True)
        (ivy / "jars" / name).write_text(answer)

    monkeypatch.setattr(jar_download, "resolve", resolve)
    if answer == "other":
        with pytest.raises(JarsDiffer):
            jar_download.fetch(wanted, tmp_path / "jars", {"HOME": str(tmp_path)})
        assert not (tmp_path / "jars").exists()
        return
    jar_download.fetch(wanted, tmp_path / "jars", {"HOME": str(tmp_path)})
    assert (tmp_path / "jars" / wanted.jars[0].file).read_text() == "one"


def test_java_gets_the_proxy_that_other_programs_read_from_variables() -> None:
    environment = {"https_proxy": "http://proxy.example:3128", "HTTP_PROXY": "http://me:secret@proxy.example"}
    flags = list(jar_download._proxy_flags(environment))
    assert flags == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]
