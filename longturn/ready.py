"""Ready files: how a daemon tells whoever started it that it serves, and where."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def write_ready(path: Path | None, facts: Mapping[str, object]) -> None:
    """Write `facts` and this process's pid as JSON, atomically; None does nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"pid": os.getpid(), **facts}), encoding="utf-8")
    partial.replace(path)
