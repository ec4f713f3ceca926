"""A PostgreSQL server of the tests' own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_USER = "postgres"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of an empty database, its server stopped at the end; tests skip where PostgreSQL is not installed."""
    binaries = _find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (initdb not found): apt-get install postgresql")
    # Not under pytest's own folder: root's is closed to the user that the server runs as, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    run = _runner(folder)
    data, socket = folder / "data", folder
    run(binaries / "initdb", "-D", data, "-A", "trust", "-U", _USER, "--no-sync")
    options = f"-k {socket} -c listen_addresses= -c fsync=off -c max_connections=50"
    run(binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
    try:
        yield f"postgresql://{_USER}@/postgres?host={socket}"
    finally:
        run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _find_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).parent


def _runner(folder: Path) -> Callable[..., None]:
    """Runs the server's programs, which refuse to be root, as the package's user then."""
    user: dict[str, int] = {}
    if os.getuid() == 0:
        entry = pwd.getpwnam(_USER)
        user = {"user": entry.pw_uid, "group": entry.pw_gid}
        os.chown(folder, entry.pw_uid, entry.pw_gid)

    def run(*words: object) -> None:
        subprocess.run([str(word) for word in words], check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

    return run
