"""Memory that is free goes back to the system."""

from __future__ import annotations

import subprocess
import sys

#: A backlog of large blocks, and small ones between them that outlive it.
BACKLOG = """
import psutil
from understudy.runtime.memory import return_what_is_free

def held_mb():
    return psutil.Process().memory_info().rss / 2**20

return_what_is_free()
before = held_mb()
kept = []
for _ in range(3):
    backlog = []
    for _ in range(100):
        backlog.append(bytearray(2**20))
        kept.append(bytearray(1_000))
    del backlog
print(held_mb() - before)
"""


def test_a_backlog_that_is_gone_leaves_nothing_behind() -> None:
    ended = subprocess.run([sys.executable, "-c", BACKLOG], capture_output=True, text=True, check=True)
    assert float(ended.stdout) < 10
