"""Gives Python the JVM's classes by name, and converts values to the types that Scala's signatures require."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage
from pyspark.sql import SparkSession


class _KnownClass(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class that asks the JVM once for each of its static methods. A quarter of a merge's calls were such questions.

    Fields are asked for each time.
    """

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            self.__dict__[name] = member
        return member


_classes: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()
_configurations: Final[WeakKeyDictionary[SparkSession, Any]] = WeakKeyDictionary()
_settings: Final[WeakKeyDictionary[SparkSession, dict[str, str]]] = WeakKeyDictionary()


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name; a JavaPackage if there is no such class.

    `jvm.org.apache.spark…` makes one call per part of the name. For each part the JVM searches all jars for a class of
    that name, for example `org`. Delta's classes it searches there in every call, before it asks the loader that has
    Delta's jars. Here one call finds the class, and the next caller gets the same object.
    """
    jvm = session.sparkContext._jvm
    known = _classes.setdefault(jvm, {})
    if name not in known:
        found = getattr(jvm, name)
        if isinstance(found, JavaPackage):
            return found
        known[name] = _KnownClass(name, found._gateway_client)
    return known[name]


def keep_hadoop_configuration(session: SparkSession) -> None:
    """Let `hadoop_configuration` make one for this session and no further one, and `hadoop_setting` ask for each
    setting once. What the session sets later is ignored.

    Each new one copies a thousand settings. A merge asked for twenty.
    """
    _configurations[session] = None
    _settings[session] = {}


def hadoop_configuration(session: SparkSession) -> Any:
    """Hadoop's configuration with the settings of this session, to be read only."""
    made = _configurations.get(session)
    if made is None:
        made = session._jsparkSession.sessionState().newHadoopConf()
        if session in _configurations:
            _configurations[session] = made
    return made


def hadoop_setting(session: SparkSession, name: str, default: str) -> str:
    """A setting of `hadoop_configuration`."""
    known = _settings.get(session, {})
    if name not in known:
        known[name] = str(hadoop_configuration(session).get(name, default))
    return known[name]


def option(spark: SparkSession, value: Any = None) -> Any:
    """Scala's Option with the value; Scala's None if the value is None."""
    return java_class(spark, "scala.Option").apply(value)


def sequence(spark: SparkSession, java_list: Any) -> Any:
    """A Scala sequence with the elements of a Java list."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(java_list)


def array_list(spark: SparkSession) -> Any:
    """An empty Java list."""
    return java_class(spark, "java.util.ArrayList")()
