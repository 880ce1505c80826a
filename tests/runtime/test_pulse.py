"""A process that does nothing any more is told from one that works, and from a launcher that slept."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from understudy.runtime.pulse import BEAT_S, LAUNCHER, STILL_LOOKS, Pulse, keep_beating, pulse_file


class Launcher:
    """Looks at one process; its clock goes by hand."""

    def __init__(self, file: Path) -> None:
        self._now_s = 0.0
        self._file = file
        self.pulse = Pulse(file, lambda: self._now_s)

    def beat(self) -> None:
        self._file.touch()
        os.utime(self._file, ns=(0, int(self._now_s * 1e9)))

    def looks(self, times: int, every_s: float = BEAT_S) -> list[bool]:
        found = []
        for _ in range(times):
            self._now_s += every_s
            found.append(self.pulse.stands_still)
        return found


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    file = pulse_file(tmp_path, "node-1")
    file.parent.mkdir()
    file.touch()
    return Launcher(file)


def test_a_process_that_has_not_begun_is_not_judged_by_the_file_of_another(launcher: Launcher) -> None:
    assert not any(launcher.looks(3 * STILL_LOOKS))


def test_a_process_that_beats_is_never_still(launcher: Launcher) -> None:
    for _ in range(3 * STILL_LOOKS):
        launcher.beat()
        assert launcher.looks(1) == [False]


def test_a_process_without_a_beat_is_still_after_so_many_looks(launcher: Launcher) -> None:
    launcher.beat()
    assert launcher.looks(STILL_LOOKS + 1) == [False] * STILL_LOOKS + [True]


def test_looks_that_follow_each_other_quickly_are_one(launcher: Launcher) -> None:
    launcher.beat()
    assert not any(launcher.looks(4 * (STILL_LOOKS - 1), BEAT_S / 4))


def test_a_launcher_that_slept_blames_nobody(launcher: Launcher) -> None:
    launcher.beat()
    assert not any(launcher.looks(STILL_LOOKS, every_s=3600))


def test_a_launcher_that_cannot_leave_a_sign_itself_blames_nobody(launcher: Launcher, tmp_path: Path) -> None:
    pulse_file(tmp_path, LAUNCHER).symlink_to(tmp_path / "gone" / "file")
    launcher.beat()
    assert not any(launcher.looks(3 * STILL_LOOKS))


def test_a_process_beats_until_it_ends(tmp_path: Path) -> None:
    file, over = pulse_file(tmp_path, "node-1"), threading.Event()
    keep_beating(file, lambda _s: over.wait(0.01))
    seen: set[int] = set()
    deadline = time.monotonic() + 20
    while len(seen) < 3:
        assert time.monotonic() < deadline
        if file.exists():
            seen.add(file.stat().st_mtime_ns)
    over.set()


def test_what_does_not_answer_has_no_pulse(tmp_path: Path) -> None:
    answers, over, asked = iter([False, False, True]), threading.Event(), threading.Event()
    file = pulse_file(tmp_path, "zookeeper")

    def alive() -> bool:
        answer = next(answers)
        assert not file.exists()
        if answer:
            over.set()
        return answer

    def wait(_seconds: float) -> bool:
        if over.is_set():
            asked.set()
        return over.is_set()

    keep_beating(file, wait, alive)
    assert asked.wait(30)
    assert file.exists()
