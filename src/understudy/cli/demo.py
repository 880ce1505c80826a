"""`understudy demo`: lose two of three machines while watching, then prove that nothing is missing."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.cli.check import judged
from understudy.cli.folders import fresh_folder, log_into, make
from understudy.cli.interruption import Interrupted, Interruption
from understudy.cli.output import output_may_fail
from understudy.cli.policies import chosen_policy
from understudy.cli.show import Show, Story
from understudy.demo.figure import draw
from understudy.demo.sessions import SOURCE
from understudy.demo.truth import batch, generated, origin_us
from understudy.demo.verdict import (
    WITHIN_S,
    arrivals,
    compare,
    deliveries,
    middle_and_p99,
    normal_intervals_ms,
    out_of_order,
    silence_ms,
)
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime.local import LocalRun
from understudy.runtime.process_tree import end_descendants
from understudy.runtime.settings import RunSettings
from understudy.runtime.sinks.reading import read_output
from understudy.runtime.trial import Finished

FAILED = 1
_FLOW_FILE = '''"""The demonstration's flow. Try: understudy explain {path}"""

from understudy.demo.sessions import build

flow = build(rows_per_s={rate!r}, rows={rows!r}, output={output!r})
'''


@output_may_fail()
def execute(arguments: Namespace) -> int:
    began_s = time.monotonic()
    folder = fresh_folder(arguments.folder, "demo")
    make(folder)
    settings = _prepared(folder, arguments)
    log_into(settings)
    flow = load(settings.flow_path)
    _say(f"Running in {folder}.")
    with Interruption() as interruption:
        try:
            story = _played(settings, arguments.seconds, interruption)
            _say("Running the same functions as a batch job over the same packets.")
            rows = generated(flow, SOURCE, origin_us(flow, SOURCE, folder / "log"))
            expected = interruption.unless(lambda: batch(flow, rows, folder / "batch", heap_mb=1024))
        except Interrupted:
            end_descendants()
            _say("Everything is ended.")
            return interruption.exit_code
        except Finished as problem:
            raise UserError(
                f"The input of {arguments.seconds:g} s ended while waiting for {problem}: this machine is "
                f"slow today. Try again with --seconds {2 * arguments.seconds:g}, "
                f'or make demo DEMO="--seconds {2 * arguments.seconds:g}".'
            ) from None
    verdict = _verdict(flow, settings, story, rows, expected)
    verdict["seconds"] = round(time.monotonic() - began_s, 1)
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
    _tell(verdict, folder)
    return 0 if verdict["passed"] else FAILED


def _prepared(folder: Path, arguments: Namespace) -> RunSettings:
    path = folder / "flow.py"
    rows = max(1, int(arguments.rate * arguments.seconds))
    path.write_text(
        _FLOW_FILE.format(path=path, rate=arguments.rate, rows=rows, output=str(folder / "output"))
    )
    policy = chosen_policy(arguments.policy, arguments.replicas)
    return RunSettings(
        run=folder.name,
        flow_path=str(path),
        folder=str(folder),
        zookeeper="",
        policy=policy,
        nodes=policy.nodes_usual,
        heap_mb=arguments.heap,
    )


def _played(settings: RunSettings, source_s: float, interruption: Interruption) -> Story:
    with LocalRun.on_own_zookeeper(settings, nodes=settings.nodes, standby=1) as run:
        run.start()
        _say(f"Starting a gateway, {settings.nodes} nodes and a standby, each with a Spark of its own.")
        try:
            return Show(run, interruption, _say).play(source_s)
        except Interrupted:
            _say("Asked to end. Ending every process.")
            raise


def _verdict(
    flow: Flow, settings: RunSettings, story: Story, rows: pa.Table, expected: pa.Table
) -> dict[str, Any]:
    folder = settings.path
    actual = read_output(folder / "output")
    delivered = deliveries(settings.history_file("gateway"))
    found = compare(expected, actual)
    kills_us = [kill.at_us for kill in story.kills]
    source_end_us = rows.column("ts").cast("int64")[-1].as_py()
    times_us = [delivery.at_us for delivery in delivered]
    interval_ms, interval_p99_ms = middle_and_p99(
        normal_intervals_ms(times_us, story.steady_us, source_end_us, kills_us)
    )
    steady = [d for d in delivered if d.at_us >= story.steady_us]
    latency_ms, latency_p99_ms = middle_and_p99([d.latency_ms(flow.bucket_us) for d in steady])
    draw(
        folder / "demo.png",
        delivered,
        width_us=flow.bucket_us,
        begin_us=max(story.began_us, story.steady_us - 10_000_000),
        failures=[(kill.at_us, kill.node) for kill in story.kills],
        catch_ups=[(k.caught_up_us, str(k.caught_up)) for k in story.kills if k.caught_up_us is not None],
    )
    disorder = out_of_order(delivered)
    violations = _violations(folder / "history")
    return {
        "passed": not (found.lost or found.duplicated or found.wrong or disorder or violations),
        "rows_in": rows.num_rows,
        "results": actual.num_rows,
        "expected": expected.num_rows,
        "lost": found.lost,
        "duplicated": found.duplicated,
        "wrong": found.wrong,
        "out_of_order": disorder,
        "violations": violations,
        "kills": [
            {
                "node": kill.node,
                "role": kill.role,
                "at_s": round((kill.at_us - story.began_us) / 1e6, 1),
                "longest_silence_ms": silence_ms(times_us, kill.at_us),
                "caught_up": kill.caught_up,
                "caught_up_after_s": kill.caught_up_us and round((kill.caught_up_us - kill.at_us) / 1e6, 1),
            }
            for kill in story.kills
        ],
        "partitions": _partitions(settings, story, source_end_us),
        "interval_ms": {"median": interval_ms, "p99": interval_p99_ms},
        "latency_ms": {"median": latency_ms, "p99": latency_p99_ms},
        "memory_mb": {"total": story.total_mb, **story.memory_mb},
    }


def _partitions(settings: RunSettings, story: Story, source_end_us: int) -> dict[str, Any]:
    """How long each partition's output stayed away: normally, and after each kill until every copy was back.

    Nothing for a flow in one piece: its only partition's output is all of the output.
    """
    harmed = [(k.at_us, max(WITHIN_S, ((k.caught_up_us or k.at_us) - k.at_us) / 1e6)) for k in story.kills]
    found: dict[str, Any] = {}
    arrived = arrivals(settings.history_file("gateway"))
    for partition, at_us in arrived.items() if len(arrived) > 1 else ():
        first_us = harmed[0][0] if harmed else source_end_us
        normal = normal_intervals_ms(at_us, story.steady_us, first_us, [])
        median_ms, p99_ms = middle_and_p99(normal)
        found[partition] = {
            "interval_ms": {"median": median_ms, "p99": p99_ms, "longest": max(normal, default=0.0)},
            "longest_silence_ms": [silence_ms(at_us, kill_us, within_s) for kill_us, within_s in harmed],
        }
    return found


def _violations(history: Path) -> list[str]:
    """What the judge finds in the run's history."""
    try:
        verdict = judged(sorted(history.glob("*.jsonl")))
    except UserError as problem:
        return [f"the history cannot be judged: {problem}"]
    found = [f"{each.invariant}: {each.what}; {each.record}" for each in verdict.findings]
    return found + [f"the history is damaged: {each}" for each in verdict.damages]


def _tell(verdict: dict[str, Any], folder: Path) -> None:
    interval = verdict["interval_ms"]
    print(f"\n  packets in    {verdict['rows_in']}")
    print(f"  results out   {verdict['results']} (the batch job: {verdict['expected']})")
    for name in ("lost", "duplicated", "wrong", "out_of_order"):
        print(f"  {name.replace('_', ' '):<13} {verdict[name]}")
    print(f"  interval      {_spread(interval)} between outputs")
    for kill in verdict["kills"]:
        print(f"  silence       {kill['longest_silence_ms']:.0f} ms at most after {kill['node']} was killed")
    for partition, facts in verdict["partitions"].items():
        silences = ", ".join(f"{each:.0f}" for each in facts["longest_silence_ms"])
        print(f"  {partition:<13} {_spread(facts['interval_ms'])}; at most {silences} ms after the kills")
    print(f"  latency       {_spread(verdict['latency_ms'])}")
    print(f"  memory        {verdict['memory_mb']['total']:.0f} MB in all at most")
    print(f"  time          {verdict['seconds']:.0f} s\n")
    for violation in verdict["violations"]:
        print(f"  violation: {violation}")
    word = "PASSED: nothing lost, nothing twice, all in order." if verdict["passed"] else "FAILED."
    print(f"{word}\nSee {folder}/verdict.json and {folder}/demo.png; understudy check {folder}")


def _spread(values_ms: dict[str, float]) -> str:
    return f"{values_ms['median']:.0f} ms (99 of 100 below {values_ms['p99']:.0f} ms)"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
