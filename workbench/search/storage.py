"""Where a study is kept: a journal file beside it, or any storage URL that Optuna knows."""

from __future__ import annotations

import fcntl
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import optuna
from optuna.storages import BaseStorage as BaseStorage
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from workbench.search.errors import StorageError
from workbench.search.slots import HISTORY, MAX_LOST, retry_attributes

HEARTBEAT_S = 5
"""Between two signs of life of a running trial."""
GRACE_S = 20
"""Without one for this long a trial's process counts as dead."""
_LOCK_WAIT_S = 60
"""For which a writer waits on SQLite's lock of the whole file."""
_SECRETS = (re.compile(r"(?<=://)(?P<before>[^:/]*:)(?P<secret>.*)(?P<after>@)"),
            re.compile(r"(?i)(?P<before>(?:password|passwd|token)=)(?P<secret>[^&]*)(?P<after>)"))  # fmt: skip
"""`user:SECRET@host`, up to the last @ as a password may hold one, and `?password=SECRET`."""
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql"}
_JOURNAL = "journal:///"


def redacted(url: str) -> str:
    """`url` without its password, for messages and files."""
    for secret in _SECRETS:
        url = secret.sub(r"\g<before>***\g<after>", url)
    return url


def open_journal(path: Path) -> JournalStorage:
    """The default storage: a journal file next to the study's other files; appends survive a kill.

    For the study's only writer: what a killed one left of its last line and its lock is cleared away. Raises
    `ValueError` for a file that is no journal.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb+") as journal:
            whole, newline, _ = journal.read().rpartition(b"\n")
            journal.truncate(len(whole) + len(newline))
    Path(f"{path}.lock").unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def open_url(url: str, *, heartbeat_s: int = HEARTBEAT_S, grace_s: int = GRACE_S) -> BaseStorage:
    """The storage at a URL: `sqlite:///study.db`, `postgresql://user@host/db`, `mysql://...`, `redis://...` or
    `journal:///file.log`.

    Databases record signs of life of running trials, so that several processes may share a study. Raises
    `StorageError`.
    """
    try:
        if url.startswith(_JOURNAL):
            return _open_own_journal(Path(url.removeprefix(_JOURNAL)))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", optuna.exceptions.ExperimentalWarning
            )  # heartbeats are since 2021, Redis too
            if url.startswith(("redis://", "rediss://")):
                return JournalStorage(JournalRedisBackend(url))
            return optuna.storages.get_storage(_open_database(url, heartbeat_s, grace_s))
    except Exception as error:  # each database's driver has errors of its own
        raise StorageError(f"--storage {redacted(url)}: {_reason(error, url)}") from None


def close_storage(storage: BaseStorage) -> None:
    """End a database's connections, or give up a journal."""
    backend = getattr(storage, "_backend", storage)  # behind Optuna's cache
    if isinstance(backend, RDBStorage):
        backend.remove_session()
        backend.engine.dispose()
    owner = getattr(storage, "owner", None)
    if owner is not None:
        owner.close()


def study_names(storage: BaseStorage) -> tuple[str, ...]:
    """Of all studies in the storage."""
    return tuple(study.study_name for study in storage.get_all_studies())


def has_heartbeats(storage: BaseStorage) -> bool:
    """True where a dead process is noticed, so that several may share a study."""
    return isinstance(storage, BaseHeartbeat) and storage.get_heartbeat_interval() is not None


def _open_own_journal(path: Path) -> JournalStorage:
    """A journal whose place the user chose, for one process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = Path(f"{path}.owner").open("w")  # noqa: SIM115  held until the process ends
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner.close()
        raise ValueError("another sweep is at work on this journal. Wait for it, or use a database") from None
    storage = open_journal(path)
    storage.owner = owner
    return storage


def _open_database(url: str, heartbeat_s: int, grace_s: int) -> RDBStorage:
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError("is no URL. Give one such as postgresql://user@host/database or sqlite:///study.db")
    scheme = "postgresql" if scheme == "postgres" else scheme
    driver = _DRIVERS.get(scheme)
    is_sqlite = scheme.startswith("sqlite")
    return RDBStorage(
        f"{scheme}+{driver}://{rest}" if driver else url,
        # A server may close connections that were idle during a long trial.
        engine_kwargs={"connect_args": {"timeout": _LOCK_WAIT_S}} if is_sqlite else {"pool_pre_ping": True},
        heartbeat_interval=heartbeat_s,
        grace_period=grace_s,
        heartbeat_stale_trial_callback=retry_lost_trial,
    )


def retry_lost_trial(study: optuna.Study, lost: FrozenTrial) -> None:
    """Queue a trial again whose process died, with the parameters that it had and a link to it.

    Optuna's own callback would also hand on the dead process's attributes, its half of an outcome among them.
    """
    attributes = retry_attributes(lost)
    if len(attributes[HISTORY]) >= MAX_LOST:
        return
    study.add_trial(
        optuna.create_trial(
            state=OptunaState.WAITING,
            params=lost.params,
            distributions=lost.distributions,
            system_attrs=attributes,
        )
    )


def _reason(error: Exception, url: str) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    for found in filter(None, (secret.search(url) for secret in _SECRETS)):  # drivers may quote what they were given
        for spelling in {found["secret"], unquote(found["secret"])} - {""}:
            text = text.replace(spelling, "***")
    if isinstance(error, ImportError) or "No module named" in text:
        return "its driver is not installed. pip install 'psycopg[binary]' for PostgreSQL, pymysql, redis for others"
    return text[:300]


def name_objectives(study: optuna.Study, names: Iterable[str]) -> None:
    """For optuna-dashboard and Optuna's plots, which call them values otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if study.metric_names != list(names):
            study.set_metric_names(list(names))
