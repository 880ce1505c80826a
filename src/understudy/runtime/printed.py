"""What processes print, and their Javas, goes into files that nothing but their size bounds.

Those who write hold such a file open, to append to it. So the launcher copies one that is full and empties
it. What is printed at that very moment may be missing in the copy. A disk that has no room for a copy gets
none: the run's own data needs the room more.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from understudy.runtime.process import LOG_BYTES_MAX

#: In a run's folder.
_PRINTED = ("logs/*.out.log", "logs/*.jvm.log", "zookeeper/server.log")


def bound_printed(folder: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Of each such file in a run's folder, keep so much twice at most: what is printed now, and what was
    before it.
    """
    for pattern in _PRINTED:
        for file in folder.glob(pattern):
            # A disk that fails may work at the next look.
            with suppress(OSError):
                if file.stat().st_size >= bytes_max:
                    _begin_anew(file)


def _begin_anew(file: Path) -> None:
    before = file.with_name(f"{file.name}.1")
    # First: a full disk may have no room for both.
    before.unlink(missing_ok=True)
    try:
        shutil.copyfile(file, before)
    except OSError:
        # A part of a copy would take the last room of a full disk.
        with suppress(OSError):
            before.unlink()
    os.truncate(file, 0)
