"""Errors of the search that are the user's to mend."""

from __future__ import annotations


class StorageError(Exception):
    """A storage that cannot be opened; the message names it, without its password, and what to do."""
