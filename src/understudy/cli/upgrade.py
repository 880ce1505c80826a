"""`understudy upgrade`: a changed flow goes live while rows flow.

What speaks against it is said here, before anything starts. The rest is done by the process that started the
run (`runtime.upgrading`). This one tells how it goes, and on Ctrl-C has the new version taken back. If it
ends in another way, the upgrade goes on.
"""

from __future__ import annotations

import shutil
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from understudy.cli.folders import run_in
from understudy.cli.interruption import Interruption
from understudy.cli.main import INTERRUPTED
from understudy.cli.output import output_may_fail
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load_with_files
from understudy.runtime.fit import require_fit
from understudy.runtime.folder_lock import FolderLock, lock_of_run
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import (
    changed_ends,
    has_changed,
    keep_former_shapes,
    known_shapes,
    pin,
    pinned_shape,
)
from understudy.runtime.process import finished_file
from understudy.runtime.saved_shapes import shapes_that_count
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrade_files import (
    DONE,
    Progress,
    Request,
    cancel,
    progress_in,
    under_way,
)

NOT_DONE = 1
#: How long taking back may last: the gateway lets go of the version, and its nodes end.
TAKING_BACK_S_MAX = 120.0
#: The run looks for requests twice a second.
TAKEN_UP_S_MAX = 30.0
_POLL_S = 0.2
_LOCK = "upgrade.lock"


@output_may_fail()
def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    _require_running(settings)
    flow, files = load_with_files(arguments.flow)
    lock = FolderLock(settings.path, "The run's folder", _busy(settings), _LOCK)
    lock.take()
    try:
        # As they are now: until the lock was held, another upgrade may have come to its end.
        settings = run_in(arguments.folder)
        _require_able(settings, flow)
        wanted = _next_version(settings, Path(arguments.flow).resolve())
        if not has_changed(replace(settings, flow_path=wanted.flow_path)):
            print("Nothing to do: the run has this code already.")
            return 0
        _require_same_ends(settings, flow)
        request = _looked_at(settings, wanted, flow, files, arguments.trial)
        return _followed(settings, request)
    finally:
        lock.release()


# --- what speaks against it ---------------------------------------------------------------------------------


def _require_running(settings: RunSettings) -> None:
    if finished_file(settings.path).exists():
        raise UserError(
            f"Run {settings.run} in {settings.folder} is finished: every source has ended and everything is "
            "delivered. Start the changed flow in a new folder."
        )
    if not lock_of_run(settings.path).is_held():
        raise UserError(
            f"Run {settings.run} in {settings.folder} is not running on this machine. A run that is stopped "
            f"goes on with a changed flow: understudy run FLOW.py --folder {settings.folder}"
        )


def _require_able(settings: RunSettings, flow: Flow) -> None:
    if flow.name != settings.flow:
        raise UserError(f"Run {settings.run} is of flow {settings.flow!r}, and this is flow {flow.name!r}.")
    if not settings.saves:
        raise UserError(
            f"Run {settings.run} saves no state, and a new version begins with a saved state. Start it with "
            "--snapshot-every, and with another policy than cluster."
        )
    if under_way(settings.path):
        raise _busy(settings)
    if pinned_shape(settings) is None:
        raise UserError(f"No node of run {settings.run} is ready yet. Wait until it works.")


def _busy(settings: RunSettings) -> UserError:
    return UserError(
        f"Another upgrade of run {settings.run} is under way. Wait until it has ended; `understudy run` says "
        "how it goes."
    )


def _require_same_ends(settings: RunSettings, flow: Flow) -> None:
    if changes := changed_ends(settings, flow):
        reasons = "\n".join(f"- {change}" for change in changes)
        raise UserError(
            f"An upgrade changes fragments, not sources and sinks:\n{reasons}\n"
            "Stop the run, and go on with the new file."
        )


def _next_version(settings: RunSettings, flow_file: Path) -> RunSettings:
    """The settings of the version that is to come, beside those of the one that runs."""
    # Versions that run side by side have nodes of other names: no two processes have one log or folder.
    first_node = settings.first_node + settings.nodes + settings.standby
    return replace(
        settings, flow_path=str(flow_file), version=settings.versions_tried + 1, first_node=first_node
    )


def _looked_at(
    settings: RunSettings, wanted: RunSettings, flow: Flow, files: list[Path], trial_s: float
) -> Request:
    """The request for the upgrade, if nothing speaks against it."""
    # What a command that was killed has left: no version of this number was ever begun.
    shutil.rmtree(wanted.version_path, ignore_errors=True)
    # Written down first: what is looked at must be what runs.
    pin(wanted, flow, files)
    try:
        print("looking whether the saved state fits the new code", flush=True)
        shapes = shapes_that_count(known_shapes(settings), store_of(settings))
        for sentence in require_fit(wanted, shapes):
            print(sentence)
        # What the new version adopts is of one of them.
        keep_former_shapes(wanted, shapes)
        _require_unchanged(wanted)
        _require_running(settings)
        return Request(wanted, Dataflow.of(flow, wanted), trial_s, flow.bucket_us)
    except BaseException:
        shutil.rmtree(wanted.version_path, ignore_errors=True)
        raise


def _require_unchanged(wanted: RunSettings) -> None:
    if has_changed(wanted):
        raise UserError(f"{wanted.flow_path} was changed meanwhile. Try again.")


# --- how it goes --------------------------------------------------------------------------------------------


def _followed(settings: RunSettings, request: Request) -> int:
    """Ask for the upgrade, and tell how it goes until it has ended; the exit code."""
    launcher, version, said = lock_of_run(settings.path), request.version, 0
    with Interruption() as interruption:
        request.leave()
        seen_s, cancelled = time.monotonic(), False
        while True:
            if interruption.asked and interruption.exit_code != INTERRUPTED:
                print("No longer following; the upgrade goes on.")
                return interruption.exit_code
            if interruption.asked and not cancelled:
                cancelled = True
                interruption.grant(TAKING_BACK_S_MAX)
                print("taking it back", flush=True)
                cancel(settings.path)
            if cancelled and interruption.asked_again:
                print("No longer following; it is still being taken back.")
                return interruption.exit_code
            # Asked first: the last that the run has said before its end is read below.
            has_ended = not launcher.is_held() or _generation(settings) != settings.generation
            progress = _progress(settings, version)
            for sentence in progress.sentences[said:]:
                print(sentence, flush=True)
            said = len(progress.sentences)
            if progress.outcome:
                return 0 if progress.outcome == DONE else NOT_DONE
            if has_ended:
                return _broken_off(settings, version)
            if said or under_way(settings.path):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > TAKEN_UP_S_MAX:
                raise EnvironmentFailed(
                    f"How the upgrade goes is not known: nothing in {settings.path} says it. "
                    f"`understudy run` may, or its logs in {settings.path / 'logs'}."
                )
            time.sleep(_POLL_S)


def _progress(settings: RunSettings, version: int) -> Progress:
    found = progress_in(settings.path)
    return found if found is not None and found.version == version else Progress(version)


def _generation(settings: RunSettings) -> int:
    """A run that goes on while this looked elsewhere has forgotten the upgrade."""
    return RunSettings.load(settings.path).generation


def _broken_off(settings: RunSettings, version: int) -> int:
    """The run has ended before the upgrade did."""
    is_done = RunSettings.load(settings.path).version == version
    now = "the new version" if is_done else "the version before"
    if finished_file(settings.path).exists():
        print(f"The run has finished with {now}: every source has ended and everything is delivered.")
    else:
        print(
            f"The run has ended meanwhile, with {now}. It goes on from that one's state: "
            f"understudy run FLOW.py --folder {settings.folder}"
        )
    return 0 if is_done else NOT_DONE
