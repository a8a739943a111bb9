"""A byte proxy that can cut every connection, in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Forwards to one loopback port; `cut` resets all connections, new ones are accepted again at once."""

    def __init__(self, address: str) -> None:
        self._target = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.num_cuts = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> CuttingProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *details: object) -> None:
        # Closing a listener does not wake a blocked accept; shutting it down does.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        self.num_cuts += bool(sockets)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [near, far]
            closing = threading.Barrier(2)
            self._start(self._pump, near, far, closing)
            self._start(self._pump, far, near, closing)

    def _pump(self, source: socket.socket, sink: socket.socket, closing: threading.Barrier) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        closing.wait()
        source.close()
