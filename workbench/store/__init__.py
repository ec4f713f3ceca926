"""Runs and studies on disk."""

from workbench.store.errors import StoreError
from workbench.store.provenance import collect_provenance
from workbench.store.runs import RunEntry, RunInfo, StoredRun, list_runs, load_run, load_run_info, save_run
from workbench.store.studies import StudyEntry, list_studies, load_study, save_study, trial_directory

__all__ = [
    "RunEntry",
    "RunInfo",
    "StoreError",
    "StoredRun",
    "StudyEntry",
    "collect_provenance",
    "list_runs",
    "list_studies",
    "load_run",
    "load_run_info",
    "load_study",
    "save_run",
    "save_study",
    "trial_directory",
]
