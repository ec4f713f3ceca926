"""Reads of the store for pages, remembered until the files change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from workbench.report.facts import RunFacts, StudyFacts
from workbench.services import browse
from workbench.services.browse import Entry
from workbench.services.dashboard import STORE_VARIABLE


def store_path() -> Path:
    """The folder of results that the pages show."""
    return Path(os.environ.get(STORE_VARIABLE) or "reports")


def study_of(directory: Path) -> StudyFacts:
    """Raises `StoreError`."""
    return _study(str(directory), browse.study_modified_s(directory))


def run_of(directory: Path) -> RunFacts:
    """Raises `StoreError`."""
    return _run(str(directory), browse.run_modified_s(directory))


# Facts are frozen, so one object may serve all viewers; the time of the last change is part of the key.
@st.cache_resource(max_entries=16, show_spinner="Reading the study")
def _study(directory: str, modified_s: float) -> StudyFacts:
    return browse.load_study_facts(Path(directory))


@st.cache_resource(max_entries=32, show_spinner="Reading the run")
def _run(directory: str, modified_s: float) -> RunFacts:
    return browse.load_run_facts(Path(directory))


def pick(what: str, entries: Sequence[Entry], key: str) -> Entry | None:
    """A choice among the entries that can be read; the others are listed with their problem."""
    whole = [entry for entry in entries if entry.problem is None]
    broken = [entry for entry in entries if entry.problem is not None]
    chosen = None
    if whole:
        names = [entry.name for entry in whole]
        name = st.selectbox(what, names, key=key)
        chosen = next((entry for entry in whole if entry.name == name), None)
    if broken:
        with st.expander(f"{len(broken)} that cannot be read", icon=":material/warning:", expanded=not whole):
            for entry in broken:
                st.text(f"{entry.name}: {entry.problem}")
    return chosen
