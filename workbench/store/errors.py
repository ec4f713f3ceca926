"""Errors of the store."""

from __future__ import annotations


class StoreError(Exception):
    """Something on disk cannot be written or read; the message names the path and the reason."""
