"""Build the modules: `python -m engine.compiled`. Needs mypy, setuptools and a C compiler; takes half a minute.

Does nothing where they are current. What a build leaves is complete: it takes its place in one rename.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

from engine.compiled import BUILD, MANIFEST, MODULES, ROOT, SUFFIX, digest, digests, is_current, source_of

_PREFIX = ".build-"
_MYPY = ["--ignore-missing-imports", "--follow-imports=silent", "--python-version=3.11"]


def build(work: Path) -> Path:
    """Folder under `work` with the extension modules, flat, and the manifest. Raises what mypy and setuptools raise."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:  # before the seconds that mypy takes
        raise FileNotFoundError(f"no {compiler} found")
    sources = digests()
    os.chdir(ROOT)  # mypy names modules by their place under it
    options = [*_MYPY, f"--cache-dir={work / 'mypy'}"]
    paths = [str(source_of(module).relative_to(ROOT)) for module in MODULES]
    extensions = mypycify([*options, *paths], opt_level="2", debug_level="0", target_dir=str(work / "c"))
    command = build_ext(Distribution({"name": "engine-compiled", "ext_modules": extensions}))
    command.build_lib, command.build_temp, command.parallel = str(work / "lib"), str(work / "o"), os.cpu_count()
    command.ensure_finalized()
    command.run()
    done = work / "done"
    done.mkdir()
    for file in (work / "lib").rglob(f"*{SUFFIX}"):
        name = ".".join(file.relative_to(work / "lib").parts)
        shutil.copy(file, done / name)
    manifest = {"suffix": SUFFIX, "sources": sources, "files": {file.name: digest(file) for file in done.iterdir()}}
    (done / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return done


def main() -> int:
    if is_current():
        return 0
    try:
        with _alone():
            if not is_current():  # another process may have built meanwhile
                _replace()
    except (Exception, SystemExit) as error:
        reason = f"mypy exits with {error}" if isinstance(error, SystemExit) else error
        sys.stderr.write(
            f"note: not compiled ({reason}); everything runs as Python, slower, with equal results. To compile, "
            "install a C compiler and the extra `compiled`\n"
        )
        return 1
    return 0


def _replace() -> None:
    sys.stderr.write("compiling the control plane: half a minute, once until its sources change\n")
    for left in BUILD.parent.glob(f"{_PREFIX}*"):  # by a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    # Beside its place, so that it gets there by a rename; a process that has loaded the old one keeps it.
    with tempfile.TemporaryDirectory(dir=BUILD.parent, prefix=_PREFIX) as work:
        done = build(Path(work))
        if BUILD.exists():
            BUILD.rename(Path(work) / "old")
        done.rename(BUILD)


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time; the system ends the claim with the process, however that ends."""
    folder = os.open(BUILD.parent, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)
        yield
    finally:
        os.close(folder)


if __name__ == "__main__":
    sys.exit(main())
