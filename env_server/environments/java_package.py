"""Python packages that hold a simulator for Java, and whether all that they need is there.

Nothing is imported here of what may be absent.
"""

import importlib.util
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from env_server.environment import EnvironmentBrokenError
from longturn.extras import how_to_install
from longturn.java import INSTALL_JAVA, find_java, java_command

HEAP_VARIABLE = "LONGTURN_JAVA_HEAP_MB"
DEFAULT_HEAP_MB = 2048
HOW_TO_GET_JAVA = f"install one: {INSTALL_JAVA}, or set JAVA_HOME"
_CLIENT = "py4j"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPackage:
    """A package of the one version that is known to work."""

    name: str
    version: str
    jar_name: str
    extra: str
    """Of this project's extras, the one that brings it."""

    @property
    def jar(self) -> Path:
        """Path of its jar. Raises `EnvironmentBrokenError` where it is missing, or is another version."""
        folder = self._folder(self.name)
        try:
            installed = version(self.name)
        except PackageNotFoundError:
            installed = "unknown"
        if installed != self.version:
            raise EnvironmentBrokenError(
                f"{self.name} {installed} is installed, {self.version} is needed; {how_to_install(self.extra)}"
            )
        return folder / self.jar_name

    def check(self) -> None:
        """Raise `EnvironmentBrokenError` unless the jar, the client and a Java runtime are there."""
        self._folder(_CLIENT)
        _ = self.jar
        java_program()
        heap_mb()

    def _folder(self, module: str) -> Path:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            raise EnvironmentBrokenError(f"No module named {module!r}; {how_to_install(self.extra)}")
        return Path(spec.submodule_search_locations[0])


SCIENCEWORLD = JavaPackage(
    name="scienceworld", version="1.2.3", jar_name="scienceworld.jar", extra="server-scienceworld"
)
TEXTWORLD_EXPRESS = JavaPackage(
    name="textworld_express", version="1.1.0", jar_name="textworld-express.jar", extra="server-textworld-express"
)


def java_program() -> str:
    """Path of the Java to run. Raises `EnvironmentBrokenError` where there is none."""
    found = find_java()
    if found is None:
        raise EnvironmentBrokenError(f"no Java runtime: {java_command()} is not found; {HOW_TO_GET_JAVA}")
    return found


def heap_mb() -> int:
    """What a machine's heap may grow to. Raises `EnvironmentBrokenError` where the variable holds no such number."""
    text = os.environ.get(HEAP_VARIABLE, str(DEFAULT_HEAP_MB))
    if not (text.isascii() and text.isdigit() and 64 <= int(text) <= 2**20):
        raise EnvironmentBrokenError(f"{HEAP_VARIABLE} is a number of megabytes, 64 or more; got {text!r}")
    return int(text)
