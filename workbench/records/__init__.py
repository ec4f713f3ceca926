"""Frozen records that cross rooms."""
