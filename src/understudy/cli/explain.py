"""`understudy explain`: the flow that a file builds, as text."""

from __future__ import annotations

from argparse import Namespace

from understudy.flow.loading import load


def execute(arguments: Namespace) -> int:
    print(load(arguments.flow).explain())
    return 0
