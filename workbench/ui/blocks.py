"""Pieces that both pages show: tables of the report, verdicts, hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from workbench.report.document import Block, Cell, Heading, Table, to_markdown
from workbench.report.quantities import CAUSES, label, number, share, shown, unit

TILE_WIDTH = 192
"""Pixels: six tiles in a row on a desktop; they wrap where the page is narrow."""
_VERDICT_COLORS = {"VALID": "green", "SUSPECT": "orange", "INVALID": "red"}


def show_table(table: Table) -> None:
    """A table of the report as Markdown."""
    st.markdown(plain(to_markdown([table])))


def show_section(blocks: Iterable[Block]) -> None:
    """A section of the report, its heading as the title of an expander; nothing where it is empty."""
    found = list(blocks)
    if found and isinstance(found[0], Heading):
        with st.expander(found[0].text, expanded=True):
            st.markdown(plain(to_markdown(found[1:])))


def plain(text: str) -> str:
    """Text without what Streamlit's Markdown would read as mathematics or as a directive."""
    return text.replace("$", "\\$").replace(":material", "\\:material")


def tile(name: str, value: Any) -> tuple[str, str]:
    """(label, value) of a metric tile; the unit of a rate goes to the label, where it is not cut off."""
    kind = unit(name)
    if "/" in kind and value is not None:
        return f"{label(name)} ({kind.replace('tokens', 'tok')})", number(value)
    return label(name), shown(name, value)


def show_verdict(verdict: str | None, reasons: Sequence[str]) -> None:
    """May the run be believed?"""
    if verdict is None:
        st.badge("not judged", color="gray")
        return
    st.badge(verdict, color=_VERDICT_COLORS.get(verdict, "gray"))  # type: ignore[arg-type]
    for reason in reasons:
        st.text(f"• {reason}")
    if verdict == "VALID" and not reasons:
        st.caption("No doubts: every check of the run passed.")


def show_binding(columns: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """What limited admission, for one or more runs."""
    for name, found in columns:
        st.text(f"{name}: {found['verdict']}" if len(columns) > 1 else str(found["verdict"]))
    causes = list(dict.fromkeys(cause for _, found in columns for cause in found["shares"]))
    ordered = [cause for cause in CAUSES if cause in causes] + [cause for cause in causes if cause not in CAUSES]
    rows: list[list[Cell | str]] = [
        [str(CAUSES.get(cause, cause)), *(share(found["shares"].get(cause, 0.0)) for _, found in columns)]
        for cause in ordered
    ]
    rows.append(["busy steps", *(number(found.get("num_busy_steps")) for _, found in columns)])
    rows.append(["tokens recomputed", *(number(found.get("recomputed_tokens")) for _, found in columns)])
    names = [name for name, _ in columns] if len(columns) > 1 else ["this run"]
    show_table(Table(header=["A step admitted nobody else because of", *names], rows=rows))


def show_hint(text: str, commands: Sequence[str]) -> None:
    """What to do where there is nothing to show yet."""
    st.info(text, icon=":material/lightbulb:")
    st.code("\n".join(commands), language="bash")
