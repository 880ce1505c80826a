"""Memory that is free goes back to the system."""

from __future__ import annotations

import subprocess
import sys

#: A backlog of large blocks, and small ones between them that outlive it.
BACKLOG = """
import threading, time, psutil
from understudy.runtime.memory import keep_giving_back

def held_mb():
    return psutil.Process().memory_info().rss / 2**20

before = held_mb()
kept = []
for _ in range(3):
    backlog = []
    for _ in range(100):
        backlog.append(bytearray(2**20))
        kept.append(bytearray(1_000))
    del backlog
print(held_mb() - before)
keep_giving_back(threading.Event().wait, every_s=0.01)
deadline = time.monotonic() + 20
while held_mb() - before > 10 and time.monotonic() < deadline:
    time.sleep(0.01)
print(held_mb() - before)
"""


def test_a_backlog_that_is_gone_leaves_nothing_behind() -> None:
    ended = subprocess.run([sys.executable, "-c", BACKLOG], capture_output=True, text=True, check=True)
    at_first_mb, later_mb = map(float, ended.stdout.split())
    assert later_mb < 10 < at_first_mb
