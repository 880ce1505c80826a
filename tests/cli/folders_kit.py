"""The folder of a run, looked at and named in commands."""

from __future__ import annotations

from pathlib import Path

from understudy.cli.main import main

FLOW = """
import understudy as us
flow = us.Flow("copy")
source = flow.source("packets", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def copy(packets):
    return packets

flow.sink(copy, us.JsonLines("out"))
"""
Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """All files of a run's folder but the lock, which tells who held it last."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def refused(*options: str, flow: str = "flow.py") -> int:
    return main(["run", flow, "--folder", "run", "--plain", *options])
