"""Where runs are: a folder for each under runs/, and the newest of them when none is named."""

from __future__ import annotations

import logging
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.runtime.durable import make_path
from understudy.runtime.process import LOG_BYTES_MAX, LOG_PARTS
from understudy.runtime.settings import FILE, RunSettings

RUNS = Path("runs")


def folder_for_run(wanted: str | None, flow_name: str) -> Path:
    """The folder for a run: a new one, or the one named, which may hold a run that goes on."""
    if wanted is None:
        return _new_run_folder(RUNS.resolve(), flow_name)
    folder = Path(wanted).resolve()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{wanted} is a file. Name a folder for the run.")
    return folder


def fresh_folder(wanted: str | None, flow_name: str) -> Path:
    """The folder for a new run, which must not hold one."""
    folder = folder_for_run(wanted, flow_name)
    if (folder / FILE).exists():
        raise UserError(f"{wanted} holds a run already. Name a folder that does not exist yet.")
    return folder


def _new_run_folder(base: Path, flow_name: str) -> Path:
    """A folder for a new run that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        folder = base / (f"{flow_name}-{stamp}" + (f"-{attempt}" if attempt else ""))
        if not folder.exists():
            return folder
    raise EnvironmentFailed(f"There is no free name for a run's folder in {base}.")


def make(folder: Path) -> None:
    """Create a run's folder, once nothing speaks against the run any more."""
    try:
        make_path(folder)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as problem:
        raise UserError(
            f"{folder} cannot be made: {problem.strerror}. Name another folder with --folder."
        ) from None


def _existing_folder(wanted: str | None) -> Path:
    """The folder of a run: the one named, or the newest under runs/."""
    if wanted is not None:
        folder = Path(wanted).resolve()
        if not (folder / FILE).is_file():
            raise UserError(f"{wanted} is not a run's folder: it has no {FILE}.")
        return folder
    found = sorted(RUNS.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UserError(
            "There is no run under ./runs. Start one with `understudy run FLOW.py`, or name a run's folder."
        )
    return found[-1].parent.resolve()


def run_in(wanted: str | None) -> RunSettings:
    """The run in a folder, the one named or the newest, to be asked or told something.

    A copy of a run's folder leads to the processes of the original, so it is refused.
    """
    folder = _existing_folder(wanted)
    settings = RunSettings.load(folder)
    if settings.path.exists() and not settings.path.samefile(folder):
        raise UserError(
            f"{folder} is a copy: the run's own folder is {settings.folder}. Name that one. "
            "(`understudy check` judges copies, too.)"
        )
    return settings


def log_into(settings: RunSettings) -> None:
    """Keep what this process itself logs with the run's logs, and out of the lines that a person reads."""
    make(settings.path)
    # On a full disk a line is lost; its stack trace would go to the terminal.
    logging.raiseExceptions = False
    file = settings.log_file("understudy")
    handler = RotatingFileHandler(
        file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_PARTS, errors="backslashreplace"
    )
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def require_empty_outputs(flow: Flow) -> None:
    """Refuse output folders with files of an earlier run.

    A sink goes on behind the last bucket that it finds in its folder. The output of a new run for earlier
    buckets would count as delivered.
    """
    for sink in flow.sinks.values():
        earlier = sink.kind.earlier_output()
        if earlier is not None:
            raise UserError(
                f"sink {sink.name!r}: {earlier} holds the output of an earlier run. "
                "Move or remove it, or let the sink write to another place."
            )


def require_inputs(flow: Flow) -> None:
    """Refuse sources that have nothing to read from."""
    for source in flow.sources.values():
        missing = source.kind.missing()
        if missing is not None:
            raise UserError(f"source {source.name!r}: {missing}.")


def outputs(flow: Flow) -> list[str]:
    """The folders that a flow writes to."""
    return [str(folder.resolve()) for sink in flow.sinks.values() for folder in sink.kind.folders()]
