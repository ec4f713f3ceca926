"""The examples under a command's help."""

from __future__ import annotations


def example(*commands: str) -> str:
    """Lay out the end of a help page with commands to copy; \\b keeps them from being joined into a paragraph."""
    return "\b\nExample:\n" + "\n".join(f"  {command}" for command in commands)
