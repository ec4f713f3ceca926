"""Where a result came from: versions, hardware, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from engine.compiled import is_used

PACKAGES = ("llm-serving-workbench", "torch", "triton", "numpy", "optuna", "pydantic", "pandas", "pyarrow", "locust")


def collect_provenance(checkout: Path | None = None) -> dict[str, Any]:
    """JSON types only; what cannot be found out is None. `checkout` is where to ask git (default: this package)."""
    checkout = checkout if checkout is not None else Path(__file__).resolve().parent
    commit = _git(checkout, "rev-parse", "HEAD")
    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "control_plane": "machine code" if is_used() else "Python",
        "platform": platform.platform(),
        "hardware": {"cpu": _cpu_name(), "num_cpus": _num_cpus(), "memory_bytes": _memory_bytes()},
        "commit": commit,
        "has_local_changes": None if commit is None else bool(_git(checkout, "status", "--porcelain")),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(checkout), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _num_cpus() -> int | None:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
