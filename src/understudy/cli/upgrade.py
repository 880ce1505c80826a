"""`understudy upgrade`: a changed flow goes live while rows flow.

What speaks against it is said here, before anything starts. The rest is done by the process that started the
run (`runtime.upgrading`); this one tells how it goes, and on Ctrl-C has the new version taken back.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from understudy.cli.folders import run_in
from understudy.cli.interruption import Interruption
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime.candidate import candidate_in
from understudy.runtime.fit import require_fit
from understudy.runtime.folder_lock import FolderLock, lock_of_run
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import changed_ends, has_changed, pin, unpin
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrading import DONE, Progress, Request, cancel, progress_in

NOT_DONE = 1
_POLL_S = 0.2
_LOCK = "upgrade.lock"


def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    flow = load(arguments.flow)
    busy = UserError(f"Another upgrade of run {settings.run} is under way. Wait until it has ended.")
    lock = FolderLock(settings.path, "The run's folder", busy, _LOCK)
    lock.take()
    try:
        _require_able(settings, flow)
        wanted = _next_version(settings, Path(arguments.flow).resolve())
        if not has_changed(replace(settings, flow_path=wanted.flow_path)):
            print("Nothing to do: the run has this code already.")
            return 0
        request = _looked_at(settings, wanted, flow, arguments.trial)
        return _followed(settings, request)
    finally:
        lock.release()


def _require_able(settings: RunSettings, flow: Flow) -> None:
    if lock_of_run(settings.path).holder() is None:
        raise UserError(
            f"Run {settings.run} in {settings.folder} is not running on this machine. A run that is stopped "
            f"goes on with a changed flow: understudy run FLOW.py --folder {settings.folder}"
        )
    if flow.name != settings.flow:
        raise UserError(f"Run {settings.run} is of flow {settings.flow!r}, and this is flow {flow.name!r}.")
    if not settings.saves:
        raise UserError(
            f"Run {settings.run} saves no state, and a new version begins with a saved state. Start it with "
            "--snapshot-every, and with another policy than cluster."
        )
    if candidate_in(settings.path) is not None:
        raise UserError(f"Another upgrade of run {settings.run} is under way. Wait until it has ended.")


def _next_version(settings: RunSettings, flow_file: Path) -> RunSettings:
    """The settings of the version that is to come, beside those of the one that runs."""
    last = settings.first_node + settings.nodes + settings.standby
    version = settings.versions_tried + 1
    return replace(settings, flow_path=str(flow_file), version=version, first_node=last)


def _looked_at(settings: RunSettings, wanted: RunSettings, flow: Flow, trial_s: float) -> Request:
    """The request for the upgrade, if nothing speaks against it."""
    if changes := changed_ends(settings, flow):
        reasons = "\n".join(f"- {change}" for change in changes)
        raise UserError(
            f"An upgrade changes fragments, not sources and sinks:\n{reasons}\n"
            "Stop the run, and go on with the new file."
        )
    # Written down first: what is looked at must be what runs.
    unpin(wanted)
    pin(wanted)
    try:
        print("looking whether the saved state fits the new code", flush=True)
        for sentence in require_fit(wanted, settings):
            print(sentence)
        _require_unchanged(wanted)
    except BaseException:
        unpin(wanted)
        raise
    return Request(wanted, Dataflow.of(flow, wanted), trial_s, flow.bucket_us)


def _require_unchanged(wanted: RunSettings) -> None:
    if has_changed(wanted):
        raise UserError(f"{wanted.flow_path} was changed meanwhile. Try again.")


def _followed(settings: RunSettings, request: Request) -> int:
    """Hand the request over and tell how it goes, until it has ended; the exit code."""
    version, said = request.settings.version, 0
    launcher = lock_of_run(settings.path)
    request.leave()
    with Interruption() as interruption:
        cancelled = False
        while True:
            if interruption.asked and not cancelled:
                cancelled = True
                interruption.grant(120.0)
                print("taking it back", flush=True)
                cancel(settings.path)
            found = progress_in(settings.path)
            progress = found if found is not None and found.version == version else Progress(version, ())
            for sentence in progress.sentences[said:]:
                print(sentence, flush=True)
            said = len(progress.sentences)
            if progress.outcome:
                return 0 if progress.outcome == DONE else NOT_DONE
            if launcher.holder() is None:
                print("The run has ended meanwhile. When it goes on, it does so with the version before.")
                return NOT_DONE
            time.sleep(_POLL_S)
