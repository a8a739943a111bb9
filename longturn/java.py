"""Which Java a machine has, by one rule for all who ask."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

INSTALL_JAVA = "apt-get install openjdk-17-jre-headless"


def java_command() -> str:
    """The program to run: that of JAVA_HOME where it is set, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def find_java() -> str | None:
    """Absolute path of the program; None where there is none."""
    found = shutil.which(java_command())
    return None if found is None else os.path.abspath(found)
