"""Storages by URL: opened, refused, and never with their password in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.search.errors import StorageError
from workbench.search.storage import close_storage, has_heartbeats, open_url, redacted, study_names


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://me:s3cret@db:5432/x", "postgresql+psycopg://me:***@db:5432/x"),
        ("postgresql://me:p@ss/w:rd@db/x?sslmode=require", "postgresql://me:***@db/x?sslmode=require"),
        ("postgresql://db/x?user=me&password=s3cret&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        ("redis://:s3cret@host:6379", "redis://:***@host:6379"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
    ],
)
def test_redacted_hides_passwords_and_nothing_else(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", "is no URL"),
        ("nosuch://host/x", "Can't load plugin"),
        ("sqlite:////nowhere/at/all/study.db", "unable to open database file"),
        ("postgresql://me:s3cret@127.0.0.1:1/x", "onnection refused"),
        ("postgresql://me:s3cret@host:port/x", ""),
        ("", "is no URL"),
    ],
)
def test_storage_that_cannot_be_opened_says_why_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StorageError) as error:
        open_url(url)
    assert message in str(error.value)
    assert str(error.value).startswith("--storage ")
    assert "s3cret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_database_has_heartbeats_and_a_journal_has_none(tmp_path: Path) -> None:
    database = open_url(f"sqlite:///{tmp_path}/study.db")
    assert has_heartbeats(database)
    assert study_names(database) == ()
    close_storage(database)
    journal = open_url(f"journal:///{tmp_path}/a/journal.log")
    assert not has_heartbeats(journal)
    close_storage(journal)


def test_journal_at_a_url_has_one_process_at_a_time(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path}/journal.log"
    held = open_url(url)
    with pytest.raises(StorageError, match="another sweep is at work on this journal"):
        open_url(url)
    close_storage(held)
    close_storage(open_url(url))
