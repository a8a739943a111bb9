"""Ready files: how a daemon tells whoever started it that it serves, and where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from longturn.disk import write_json


def write_ready(path: Path | None, facts: Mapping[str, object]) -> None:
    """Write `facts` and this process's pid as JSON, atomically; None does nothing. DiskError if that is impossible."""
    if path is None:
        return
    write_json(path, {"pid": os.getpid(), **facts})
