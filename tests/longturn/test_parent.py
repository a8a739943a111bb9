"""A process is tied to the one that started it, or says that it cannot be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from longturn.parent import die_with_parent

_NO_SIGNAL = 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_a_kernel_that_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="PR_SET_PDEATHSIG") as error:
        die_with_parent(os.getppid(), by=_NO_SIGNAL)
    assert error.value.errno == errno.EINVAL


def test_an_orphan_does_not_begin() -> None:
    source = "from longturn.parent import die_with_parent; die_with_parent(1 << 30); print('began')"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert result.returncode == 1
    assert "the process that started this one is gone" in result.stderr
    assert not result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_a_tied_process_dies_with_a_parent_that_was_killed() -> None:
    tied = (
        "import os, sys, time\n"
        "from longturn.parent import die_with_parent\n"
        "die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"
    with subprocess.Popen([sys.executable, "-c", parent, tied], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()
        process.kill()
        # The pipe ends when nobody holds it any more: the tied process was its last holder.
        assert process.stdout.read() == ""
