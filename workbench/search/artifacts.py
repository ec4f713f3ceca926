"""The stored run of each trial, file by file, in Optuna's artifact store, where any process of the study finds it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from optuna.artifacts import FileSystemArtifactStore, download_artifact, upload_artifact
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.trial import Trial

FILES = "run_files"
"""User attribute of a trial: file name -> artifact, of the attempt that counts."""


RunFiles = Mapping[str, str]
"""File name -> artifact."""


class _LinkingStore(FileSystemArtifactStore):  # type: ignore[misc]
    """A folder of artifacts. A stored run never changes, so where the disk allows it is linked rather than copied."""

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        try:
            os.link(content_body.name, self._get_filepath(artifact_id))
        except OSError:
            super().write(artifact_id, content_body)


class RunArchive:
    """Puts runs into the store and takes them out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = _LinkingStore(folder)

    def tidy(self, prefix: str) -> None:
        """Delete what processes that were killed left half done. For a study on which nobody works any more."""
        for left in self.folder.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)

    def put(self, trial: Trial, run: Path) -> None:
        """Store the files of `run`. Raises `OSError`."""
        files = {
            path.name: upload_artifact(artifact_store=self._store, file_path=str(path), study_or_trial=trial)
            for path in sorted(run.iterdir())
        }
        trial.set_user_attr(FILES, files)

    def fetch(self, files: RunFiles, into: Path) -> bool:
        """Copy the files of a run into a folder; False where the store does not have them all."""
        try:
            for name, artifact in files.items():
                self._fetch(artifact, into / Path(name).name)
        except ArtifactNotFound:
            return False
        return True

    def _fetch(self, artifact: str, path: Path) -> None:
        try:
            os.link(self._store._get_filepath(artifact), path)
        except OSError:
            download_artifact(artifact_store=self._store, artifact_id=artifact, file_path=str(path))
