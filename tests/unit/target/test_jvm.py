"""What Python asks of the JVM about its classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from py4j.java_gateway import JavaClass
from py4j.protocol import METHOD_TYPE, SUCCESS
from pyspark.sql import SparkSession

from tidemark.target.delta.jvm import java_class


class Jvm:
    """Notes which names, and which members of classes, it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.members: list[str] = []
        self.converters: list[Any] = []
        self.gateway_property = SimpleNamespace(pool=None)

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return JavaClass(name, self)

    def send_command(self, command: str) -> str:
        self.members.append(command.split("\n")[3])
        return f"{SUCCESS}{METHOD_TYPE}"


def session_of(jvm: Jvm) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm)))


def test_each_jvm_is_asked_for_a_class_once() -> None:
    jvm, another = Jvm(), Jvm()
    found = java_class(session_of(jvm), "scala.Option")
    assert java_class(session_of(jvm), "scala.Option") is found
    assert java_class(session_of(another), "scala.Option") is not found
    java_class(session_of(jvm), "java.util.UUID")
    assert (jvm.asked, another.asked) == (["scala.Option", "java.util.UUID"], ["scala.Option"])


def test_a_class_is_asked_for_a_static_method_once() -> None:
    jvm = Jvm()
    for _ in range(2):
        assert java_class(session_of(jvm), "scala.Option").apply.name == "apply"
    assert jvm.members == ["apply"]
