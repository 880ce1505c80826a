"""Memory that is free goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BACKLOG = """
import threading, time
import numpy, psutil, pyarrow
from understudy.runtime.memory import keep_giving_back

def held_mb():
    return psutil.Process().memory_info().rss / 2**20

gone = threading.Event()

def wait(seconds):
    gone.wait()
    time.sleep(seconds)
    return False

keep_giving_back(wait, every_s=0.01)
# Arrow loads what it computes with.
pyarrow.array(numpy.arange(10)).cast("float64")
before = held_mb()
kept = []

backlog = []
for _ in range(300):
    backlog.append({large})
    kept.append({small})
at_most_mb = held_mb() - before
del backlog
gone.set()
deadline = time.monotonic() + 20
while held_mb() - before > 20 and time.monotonic() < deadline:
    time.sleep(0.01)
print(at_most_mb, held_mb() - before)
"""

HEAPS = """
import ctypes, sys, threading
from understudy.runtime.memory import keep_giving_back

library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
keep_giving_back(threading.Event().wait)
turn = threading.Barrier(9)

def work():
    bytearray(100_000)
    turn.wait()

for _ in range(8):
    threading.Thread(target=work).start()
file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
turn.wait()
"""

#: Large blocks, and small ones between them that outlive the backlog.
BLOCKS = {
    "the C library": ("bytearray(2**20)", "bytearray(1_000)"),
    "Arrow": (
        "[pyarrow.array(numpy.arange(8_000)).cast('float64') for _ in range(20)]",
        "pyarrow.array(numpy.arange(10)).cast('float64')",
    ),
}


def output_of(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=list(BLOCKS))
def test_a_backlog_that_is_gone_leaves_nothing_behind(blocks: tuple[str, str]) -> None:
    large, small = blocks
    at_most_mb, later_mb = map(float, output_of(BACKLOG.format(large=large, small=small)).split())
    assert later_mb < 20
    assert at_most_mb > 200


def test_many_threads_have_few_heaps(tmp_path: Path) -> None:
    output_of(HEAPS, str(tmp_path / "heaps"))
    assert (tmp_path / "heaps").read_text().count("<heap ") <= 2
