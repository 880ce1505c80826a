"""How an upgrade goes, as the process that carries it out tells it: to its own terminal, and in a file to the
command that asked for it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from understudy.runtime.upgrade_files import Progress

log = logging.getLogger(__name__)


class UpgradeTelling:
    """Of the upgrades of the run in that folder, one after the other. Belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._progress = Progress(0)
        self._is_written = True
        self._news: list[str] = []

    @property
    def version(self) -> int:
        """The version that was spoken of last."""
        return self._progress.version

    def begin(self, version: int) -> None:
        """What is said from here on is of this version. What was said while it had to wait stays."""
        if version != self.version or self._progress.outcome:
            self._progress = Progress(version)

    def say(self, sentence: str, outcome: str = "") -> None:
        log.info("upgrade: %s", sentence)
        self._news.append(sentence)
        said = self._progress
        self._progress = replace(said, sentences=(*said.sentences, sentence), outcome=outcome)
        self._write()

    def news(self) -> list[str]:
        """What was said since this was last asked."""
        news, self._news = self._news, []
        return news

    def look(self) -> None:
        """Write down what a full disk has not taken."""
        if not self._is_written:
            self._write()

    def _write(self) -> None:
        try:
            self._progress.save(self._folder)
        except OSError as problem:
            if self._is_written:
                log.warning("how the upgrade goes cannot be written down: %s", problem)
            self._is_written = False
        else:
            self._is_written = True
