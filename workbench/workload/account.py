"""What became of the rows of an input: every row that was read is used, or skipped for a reason that is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportAccount:
    """Rows read = rows used + rows skipped."""

    read: int
    used: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows, each row under one reason."""

    def __add__(self, other: ImportAccount) -> ImportAccount:
        """Return the account of two inputs together."""
        skipped = Counter(self.skipped)
        skipped.update(other.skipped)
        return ImportAccount(read=self.read + other.read, used=self.used + other.used, skipped=dict(skipped))

    def without(self, count: int, reason: str) -> ImportAccount:
        """Return the account after `count` of the used rows were left out as well."""
        if count == 0:
            return self
        skipped = {**self.skipped, reason: self.skipped.get(reason, 0) + count}
        return ImportAccount(read=self.read, used=self.used - count, skipped=skipped)

    @property
    def used_fraction(self) -> float:
        """Return used / read; 1 where nothing was read."""
        return self.used / self.read if self.read else 1.0

    def describe(self) -> str:
        """Return one line: `600 read = 297 used + 303 skipped (303 input + output over max_model_len 32768)`."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items())
        text = f"{self.read:,} read = {self.used:,} used + {sum(self.skipped.values()):,} skipped"
        return f"{text} ({reasons})" if reasons else text

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {"read": self.read, "used": self.used, "skipped": dict(self.skipped)}
