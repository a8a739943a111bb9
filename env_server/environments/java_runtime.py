"""One Java virtual machine under this process, which runs the simulators of one environment's package.

Invariant: where the machine is gone, so is the worker. Its simulators hold episodes, and a worker's death is what the
server knows how to mend: it starts another one and replays them.

The machine listens on loopback only and asks for a token that this process alone knows. It ends when this process
does, whichever way, since it reads from a pipe that closes then.
"""

import atexit
import logging
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import (  # pyright: ignore[reportMissingImports]  # an optional extra
    GatewayParameters,
    JavaGateway,
    find_jar_path,
)
from py4j.protocol import (  # pyright: ignore[reportMissingImports]  # an optional extra
    Py4JError,
    Py4JJavaError,
)

from env_server.environment import EnvironmentBrokenError
from env_server.environments.java_package import HOW_TO_GET_JAVA, heap_mb, java_program

_END_S = 2.0
"""A machine that broke a connection is gone within this time, or has not ended."""
# The serial collector needs one thread, not one a core. The heap begins small, and stays near what is alive.
_MEMORY = (
    "-XX:+UseSerialGC",
    "-Xms96m",
    "-Xmn48m",
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=50",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:+ExitOnOutOfMemoryError",
)

# The client logs each lost connection with a trace of its own; what is lost is said once, by `lost`.
logging.getLogger("py4j").setLevel(logging.CRITICAL)


class JavaRuntime:
    """A running machine with `jar` on its class path. Calls may come from one thread at a time."""

    def __init__(self, jar: Path, options: Sequence[str] = ()) -> None:
        """Start it; raise `EnvironmentBrokenError` if there is no Java or it does not start."""
        classpath = os.pathsep.join((find_jar_path(), str(jar)))
        server = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
        self._process = subprocess.Popen(
            [java_program(), "-classpath", classpath, f"-Xmx{heap_mb()}m", *_MEMORY, *options, *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"MALLOC_ARENA_MAX": "2"},
            cwd=jar.parent,  # where a package's simulator looks for its other files
        )
        self._gateway = self._connect()
        atexit.register(self.close)
        # Simulators print every step; nobody reads it.
        java = self.packages.java
        java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))

    @property
    def pid(self) -> int:
        """Process id of the machine."""
        return self._process.pid

    @property
    def packages(self) -> Any:
        """The root of Java's packages: `packages.java.lang.Math.max(1, 2)`."""
        return self._gateway.jvm

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Calls into the machine belong in here: an exception there breaks the episode, its end ends this process."""
        try:
            yield
        except Py4JJavaError as error:
            raise EnvironmentBrokenError(f"the simulator raised {error.java_exception.toString()}") from error
        except Py4JError as error:  # the client tells a machine that is gone as it tells any call that failed
            if self._has_ended():
                raise SystemExit(f"the Java runtime {self.pid} is gone: {error}") from error
            raise EnvironmentBrokenError(f"a call to the Java runtime failed: {error}") from error

    def empty_array(self, java_class: Any) -> Any:
        """An empty Java array of a class such as `packages.java.lang.Object`."""
        with self.calling():
            return self._gateway.new_array(java_class, 0)

    def release(self, java_object: Any) -> None:
        """Let the machine forget an object."""
        with self.calling():
            self._gateway.detach(java_object)

    def close(self) -> None:
        """End the machine; idempotent."""
        atexit.unregister(self.close)
        self._gateway.close()
        self._end_process()

    def _has_ended(self) -> bool:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end_process(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _connect(self) -> JavaGateway:
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline().decode().strip() for _ in range(2)]
        if not all(lines):
            self._end_process()
            raise EnvironmentBrokenError(
                f"{java_program()} ended with code {self._process.returncode} (its message is in the log); "
                f"Java 11 or newer is needed, {HOW_TO_GET_JAVA}"
            )
        port, token = lines
        return JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=token, auto_field=False))
