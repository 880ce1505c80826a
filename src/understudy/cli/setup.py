"""`understudy setup`: Java's ahead-of-time cache, made once.

The cache only makes starts quicker, so a failed training is reported and is no error.
"""

from __future__ import annotations

import time
from argparse import Namespace

from understudy.engine.aot import train
from understudy.flow.errors import EnvironmentFailed


def execute(_arguments: Namespace) -> int:
    began = time.monotonic()
    try:
        path = train(progress=lambda line: print(line, flush=True))
    except (EnvironmentFailed, OSError) as problem:
        print(
            f"The start-up cache could not be made: {problem}\n"
            "Everything works without it; starts are slower."
        )
        return 0
    if path is not None:
        print(f"Ready, after {time.monotonic() - began:.0f} s.")
    return 0
