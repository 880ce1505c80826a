"""Whether a run's saved state goes on under the flow as it is now, asked before anything starts.

To look at a flow takes a Spark, and the process that starts a run has none: it asks another process, which
writes its answer to its standard output. If nothing has changed, nothing is asked.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.core.bucket import NOTHING
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.runtime.gateway.journal import Journal, journal_file
from understudy.runtime.pinning import has_changed, is_pinned, known_shapes, let_change, shape_mark, unpin
from understudy.runtime.process import failure_file
from understudy.runtime.saved_shapes import segments_of, shapes_that_count
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings
from understudy.runtime.untaken import forget_untaken, untaken_version

log = logging.getLogger(__name__)

TIMEOUT_S = 180.0
_ANSWER = "fit: "
#: Said of what speaks against the flow only because of an earlier code.
_STILL_KEPT = (
    " (A snapshot is still kept that was made by the code before. It goes when the run has saved its state "
    "twice with the code that it had last.)"
)


def go_on_with(
    flow: Flow,
    former: RunSettings,
    settings: RunSettings,
    *,
    store: SnapshotStore | None = None,
    new_code: bool = False,
    say: Callable[[str], object] = log.info,
) -> list[str]:
    """What has changed in the flow since the last generation, in sentences; the next one begins with it.

    It does not if that is the code of an upgrade that did not take over, unless it is to be taken as
    `new_code`. Raises `UserError` with every reason if the saved state cannot take it. What takes a while is
    said before it begins.
    """
    known = known_shapes(former)
    if not known:
        unpin(former)
        return []
    split_anew = settings.partition_count != former.partition_count
    if is_pinned(settings) and not has_changed(settings) and not split_anew:
        return []
    untaken = untaken_version(former, settings.flow_path)
    if untaken is not None and not new_code and not split_anew:
        return [
            f"{settings.flow_path} is version {untaken}, whose upgrade did not take over. "
            "The run goes on with the code that it had. "
            "Upgrade it again, or stop it and start it with --new-code"
        ]
    say("looking whether the saved state fits the flow as it is now")
    shapes = shapes_that_count(known, store)
    accepted = require_fit(settings, shapes)
    _begin_new_sinks(flow, settings)
    if untaken is not None:
        forget_untaken(former)
    let_change(former, shapes)
    return accepted


def require_fit(settings: RunSettings, shapes: Sequence[dict[str, Any]]) -> list[str]:
    """What the saved state of a run, made by these shapes, takes of the changes in its flow, in sentences.

    Raises `UserError` with every reason if it cannot take all of them.
    """
    fit = _asked(settings, shapes)
    if fit["refusals"]:
        reasons = "\n".join(f"- {reason}" for reason in fit["refusals"])
        raise UserError(f"The saved state does not fit the flow as it is now:\n{reasons}")
    return [str(sentence) for sentence in fit["accepted"]]


def _begin_new_sinks(flow: Flow, settings: RunSettings) -> None:
    """A sink that comes now gets what is put out from now on. Its journal shows that it is not an old one."""
    for sink in flow.sinks.values():
        journal = Journal(journal_file(settings.path, sink.name))
        if journal.exists:
            continue
        if (earlier := sink.kind.earlier_output()) is not None:
            raise UserError(
                f"sink {sink.name!r} is new in this run, and {earlier} holds the output of an earlier one. "
                "Move or remove it, or let the sink write to another place."
            )
        journal.write(NOTHING, None)


def _asked(settings: RunSettings, shapes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer of a process of its own."""
    wanted = json.dumps(
        {
            "flow": settings.flow_path,
            "unit": settings.policy.unit,
            "partitions": settings.partition_count,
            "shapes": [shape_mark(shape) for shape in shapes],
        }
    )
    command = [sys.executable, "-m", "understudy.runtime.main", "fit", settings.folder, wanted]
    # The other process ends when this pipe closes, however this one ends.
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [*command, "--with-parent"],
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EnvironmentFailed(f"Whether the flow still fits its state cannot be told: {problem}.") from None
    finally:
        os.close(reading)
        os.close(writing)
    for line in done.stdout.splitlines():
        if line.startswith(_ANSWER):
            answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
            return answer
    why = failure_file(settings.path, "fit")
    said = why.read_text().strip() if why.exists() else f"see {settings.log_file('fit')}"
    # It is said here. Left behind it would be said of the run, when that ends.
    why.unlink(missing_ok=True)
    kind = UserError if done.returncode == UserError.exit_code else EnvironmentFailed
    raise kind(f"Whether the flow still fits its state cannot be told: {said}")


def kept_elsewhere(snapshots: Mapping[str, str | None]) -> list[str]:
    """What cannot go on because its state is saved under another name: by segment, where it would come from.

    An engine could start from such a state. But copies look for their state under their own name, and their
    producers keep for that name what it lacks.
    """
    return [
        f"Fragments that read one another run as one. They were {then!r}, as which their state is saved, and "
        f"would now be {now!r}. Undo that change, or start a new run in a new folder."
        for now, then in snapshots.items()
        if then not in (None, now)
    ]


def answer(settings: RunSettings, asked: str) -> None:
    """Write the answer to the standard output."""
    # The process that asks does without Spark.
    from understudy.engine.changed_flow import shape_of_file  # noqa: PLC0415
    from understudy.engine.session import session, stop_session  # noqa: PLC0415

    wanted = json.loads(asked)
    shapes = [shape for shape in known_shapes(settings) if shape_mark(shape) in wanted["shapes"]]
    if not shapes:
        raise EnvironmentFailed(f"{settings.path} does not say what its state was made by.")
    session(master=settings.master, heap_mb=settings.heap_mb, stderr=settings.log_file("fit.jvm"))
    try:
        now = shape_of_file(wanted["flow"], unit=wanted["unit"], partitions=wanted["partitions"])
    finally:
        stop_session()
    print(f"{_ANSWER}{json.dumps(compared(shapes, now))}", flush=True)


def compared(shapes: Sequence[dict[str, Any]], now: dict[str, Any]) -> dict[str, list[str]]:
    """What speaks against the flow as it is now if its state may be of any of these shapes, of which the last
    is the newest; and what has changed since that one.
    """
    from understudy.engine.fitting import Fit, fit  # noqa: PLC0415

    def reasons(found: Fit) -> list[str]:
        return [*(remark.sentence for remark in found.refusals), *kept_elsewhere(found.snapshots)]

    newest = fit(shapes[-1], now)
    refusals = reasons(newest)
    for shape in shapes[:-1]:
        older = [*reasons(fit(shape, now)), *_come_back(shape, shapes[-1], now)]
        known = {each.removesuffix(_STILL_KEPT) for each in refusals}
        refusals += [f"{each}{_STILL_KEPT}" for each in older if each not in known]
    return {"refusals": refusals, "accepted": [remark.sentence for remark in newest.accepted]}


def _come_back(shape: dict[str, Any], newest: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What was taken out since that shape, and is to begin anew under its name."""
    there = [name for name in segments_of(now) if name not in segments_of(newest)]
    return [
        f"fragment {name!r} was taken out and would come back as a new one, while others may go on from "
        "states that count on the old one. Leave it out, or give it another name."
        for name in there
        if name in segments_of(shape)
    ]
