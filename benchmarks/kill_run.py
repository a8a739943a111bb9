"""kill -9 of every daemon in a run on real games, then of the launcher, then --resume; ends with the audit.

    python benchmarks/kill_run.py --run killed --warm-start runs/seed0 --set learner.batch.num_batches=8

Takes any options of `longturn train` after --run. Exit code 0: every kill struck, the run ended normally, and the audit
proves that in the history of the final weights every group was trained once, filtered, skipped or failed with a reason.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DAEMONS = ("learner", "actors", "engine", "env_server")
LONGTURN = (sys.executable, "-m", "longturn", "train")


def main() -> int:
    """Run, kill, resume, audit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument("--run", default="killed")
    arguments, options = parser.parse_known_args()
    folder = Path("runs") / arguments.run
    kills: dict[str, int] = {}
    first = subprocess.Popen([*LONGTURN, "--config", str(arguments.config), "--run", arguments.run, *options])
    for number, name in enumerate(DAEMONS, start=1):
        kills[name] = _kill_after(first, folder, name, num_batches=number)
    kills["launcher and all daemons"] = _wait_for(first, folder, num_batches=len(DAEMONS) + 1)
    first.kill()  # the daemons are tied to it
    first.wait()
    resumed = subprocess.run([*LONGTURN, "--resume", str(folder)], check=False)
    audit = subprocess.run(
        [sys.executable, "-m", "learner.ledger.audit", str(folder)], capture_output=True, text=True, check=False
    )
    restarts = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["restarts"]
    report = {
        "killed_after_batches": kills,
        "restarts": restarts,
        "exit_code": resumed.returncode,
        "audit_exit_code": audit.returncode,
        "audit": json.loads(audit.stdout),
    }
    print(json.dumps(report, indent=1))
    return resumed.returncode or audit.returncode


def _kill_after(run: subprocess.Popen[bytes], folder: Path, name: str, *, num_batches: int) -> int:
    """Kill a daemon once so many batches are trained; how many there were."""
    seen = _wait_for(run, folder, num_batches=num_batches)
    os.kill(json.loads((folder / "ready" / f"{name}.json").read_text(encoding="utf-8"))["pid"], signal.SIGKILL)
    return seen


def _wait_for(run: subprocess.Popen[bytes], folder: Path, *, num_batches: int) -> int:
    while (seen := _num_batches(folder)) < num_batches:
        if run.poll() is not None:
            raise SystemExit(f"the run ended with exit code {run.returncode} after {seen} batches, before every kill")
        time.sleep(0.5)
    return seen


def _num_batches(folder: Path) -> int:
    path = folder / "metrics" / "learner.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return len({json.loads(line)["batch"] for line in lines if '"batch"' in line and line.endswith("}")})


if __name__ == "__main__":
    sys.exit(main())
