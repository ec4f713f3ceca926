"""The Streamlit dashboard as a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

STORE_VARIABLE = "WORKBENCH_STORE"
"""Environment variable that tells the pages where the results are."""


def run_dashboard(store: Path, port: int) -> NoReturn:
    """Become the dashboard's process, so that a signal to this one ends it. The page listens on this machine only."""
    app = Path(__file__).resolve().parents[2] / "app.py"
    command = [sys.executable, "-m", "streamlit", "run", str(app), "--server.port", str(port)]
    command += ["--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"]
    command += ["--client.toolbarMode", "viewer", "--server.showEmailPrompt", "false"]
    command += ["--server.fileWatcherType", "none"]  # the code does not change, and watching it fills the terminal
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, STORE_VARIABLE: str(store.resolve())})
