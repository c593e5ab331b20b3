"""What set-up makes of a machine: its Java, its pip settings, its jars, its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.checkout import Checkout, this_checkout
from sandbox.setup import java, set_up, system_packages
from sandbox.setup.lock import entries_of
from sandbox.setup.uv_settings import uv_environment, uv_settings
from sandbox.steps import StepFailed, Steps


def make_java(home: Path, version: str, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return home


def places(tmp_path: Path) -> tuple[str, ...]:
    return (f"{tmp_path}/jvm/*",)


def test_java_17_in_a_usual_place_is_taken_before_21_in_java_home(tmp_path: Path) -> None:
    older = make_java(tmp_path / "jvm" / "b", "17.0.9")
    newer = make_java(tmp_path / "elsewhere", "21.0.1")
    assert java.find({"JAVA_HOME": str(newer), "PATH": ""}, places(tmp_path)) == older


def test_java_home_is_taken_before_the_same_version_elsewhere(tmp_path: Path) -> None:
    make_java(tmp_path / "jvm" / "a", "17.0.1")
    named = make_java(tmp_path / "a folder with spaces", "17.0.2")
    assert java.find({"JAVA_HOME": str(named), "PATH": ""}, places(tmp_path)) == named


def test_java_on_the_path_is_found_through_its_link(tmp_path: Path) -> None:
    home = make_java(tmp_path / "real", "17.0.1", release=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find({"PATH": str(tmp_path / "bin")}, places(tmp_path)) == home.resolve()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25"])
def test_a_java_that_spark_does_not_run_on_is_left_alone(tmp_path: Path, version: str) -> None:
    make_java(tmp_path / "jvm" / "a", version)
    assert java.find({"PATH": "", "JAVA_HOME": str(tmp_path / "gone")}, places(tmp_path)) is None


def test_every_package_manager_has_a_sentence_with_a_command() -> None:
    for manager in system_packages.MANAGERS:
        assert f"{manager.command(java.packages(manager)[0])}`" in java.advice(manager)
    assert "JAVA_HOME" in java.advice(None)


def test_the_second_package_is_tried_where_the_first_is_unknown(tmp_path: Path) -> None:
    tool = tmp_path / "install"
    tool.write_text(f'#!/bin/sh\n[ "$1" = second ] && echo "$1" > "{tmp_path}/installed"\n')
    tool.chmod(0o755)
    manager = system_packages.PackageManager("tool", (str(tool),))
    system_packages.install(manager, ["first", "second"], tmp_path / "log", {})
    assert (tmp_path / "installed").read_text() == "second\n"
    with pytest.raises(StepFailed, match="ended with 1"):
        system_packages.install(manager, ["third"], tmp_path / "log", {})


def test_every_package_of_the_lock_has_a_hash_and_no_line_names_a_host() -> None:
    lock = (this_checkout().root / "requirements.txt").read_text()
    packages = [line for line in lock.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    assert len(packages) > 100
    assert all(line.endswith("\\") for line in packages)
    assert "://" not in lock
    assert entries_of(lock, ["uv"]).startswith("uv==")
    assert entries_of(lock, ["uv"]).count("==") == 1


@pytest.mark.parametrize("ensurepip", [True, False])
@pytest.mark.parametrize("uv_works", [True, False])
def test_nothing_is_installed_or_built_but_what_the_lock_has_a_hash_of(
    ensurepip: bool, uv_works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path)
    checkout.made.mkdir()
    lock = tmp_path / "requirements.txt"
    lock.write_text((this_checkout().root / "requirements.txt").read_text())
    installing: list[list[str]] = []

    def run(command: list[object], log: Path, **_: object) -> None:
        words = [str(word) for word in command]
        if "install" in words:
            installing.append(words)
            if words[0].endswith("/uv") and not uv_works:
                raise StepFailed("no")

    monkeypatch.setattr(set_up, "run", run)
    monkeypatch.setattr(set_up, "uv_settings", lambda _: {})
    monkeypatch.setattr(
        set_up.importlib.util, "find_spec", lambda name: None if name == "ensurepip" and not ensurepip else name
    )
    set_up._environment(checkout)
    set_up._install(checkout, lock)
    for words in installing:
        assert {"--require-hashes", "--no-deps"} <= set(words)
        assert "--no-build-isolation" in words or words[words.index("--only-binary") + 1] == ":all:"
        assert words[-2] == "-r"
    entries = [Path(words[-1]) for words in installing]
    begun = [entry.name for entry in entries if entry != lock]
    assert begun == [*(["pip.txt"] if not ensurepip else []), "pip-setuptools.txt", "uv.txt"]
    assert entries.count(lock) == (1 if uv_works else 2)
    for entry in entries:
        assert all("--hash=sha256:" in block for block in entry.read_text().split("\n    # via")[0].split("==")[1:2])


def test_the_image_installs_by_the_same_rule() -> None:
    lines = (this_checkout().root / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installing = [command for line in lines for command in line.split("&&") if "pip install" in command]
    assert len(installing) == 3
    for command in installing:
        assert "--require-hashes" in command
        assert "--only-binary :all:" in command or "--no-build-isolation" in command


def test_what_pip_is_told_reaches_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout(tmp_path)
    checkout.python.parent.mkdir(parents=True)
    checkout.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    checkout.python.chmod(0o755)
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://mirror.example/simple\ncert = /etc/company.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_CERT", "/etc/mine.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for told in (uv_settings(checkout.python), uv_environment(checkout.python)):
        assert told["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
        assert told["SSL_CERT_FILE"] == "/etc/mine.pem"
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/told.pem")
    assert uv_environment(checkout.python)["SSL_CERT_FILE"] == "/etc/told.pem"


def test_a_second_set_up_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout(tmp_path)
    (tmp_path / "requirements.txt").write_text("one==1 \\\n    --hash=sha256:0\n")
    commands: list[str] = []

    def run(command: list[object], log: Path, **_: object) -> None:
        commands.append(" ".join(map(str, command)))

    def made(_: Checkout, lock: Path) -> None:
        commands.append(lock.name)
        checkout.python.parent.mkdir(parents=True, exist_ok=True)
        checkout.python.touch()

    monkeypatch.setattr(set_up, "run", run)
    monkeypatch.setattr(set_up, "_install", made)
    set_up._packages(checkout, Steps())
    assert len(commands) == 2
    set_up._packages(checkout, Steps())
    assert len(commands) == 2
    (tmp_path / "requirements.txt").write_text("one==2 \\\n    --hash=sha256:0\n")
    set_up._packages(checkout, Steps())
    assert len(commands) == 4


def test_programs_of_the_checkout_see_no_foreign_python_spark_or_airflow(tmp_path: Path) -> None:
    machine = {
        "PATH": "/usr/bin",
        "PYTHONPATH": "/somewhere",
        "SPARK_HOME": "/opt/spark",
        "AIRFLOW_HOME": "/opt/airflow",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "NO_PROXY": "example.org",
        "LANG": "C",
    }
    env = Checkout(tmp_path).environment(machine)
    assert "/opt" not in "".join(env.values())
    assert "/somewhere" not in env["PYTHONPATH"]
    assert "AIRFLOW__CORE__EXECUTOR" not in env
    assert env["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert env["LANG"] == "C"
    assert env["PATH"].split(":")[0] == str(tmp_path / ".venv" / "bin")


def test_what_programs_of_the_checkout_compile_is_kept_there(tmp_path: Path) -> None:
    env = Checkout(tmp_path).environment({**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    (tmp_path / "module.py").write_text("")
    subprocess.run([sys.executable, "-c", "import module"], env=env, cwd=tmp_path, check=True)
    assert [file.name.partition(".")[0] for file in (tmp_path / ".tidemark").rglob("*.pyc")].count("module") == 1
