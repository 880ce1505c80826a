"""The pair on real processes: kills do not change the output."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from counting import BASE, PUSH_ROWS, PUSHED, Flowing, account, generated, push_all
from pyarrow import flight

import understudy as us
from understudy.cli.main import main
from understudy.core.errors import Fenced
from understudy.history.judging import judge
from understudy.runtime.client import Client
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.trial import Trial

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def assert_history_is_clean(folder: Path) -> None:
    verdict = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.delivered > 0


def sends(status: dict[str, Any]) -> bool:
    """Whether output comes from every partition that feeds a sink."""
    senders = status["senders"].values()
    return bool(senders) and None not in senders


def flowing(trial: Trial, replicas: int = 2) -> Flowing:
    """Rows for a run, once its replicas are seated."""
    status = trial.wait("its replicas", lambda s: sends(s) and len(s["seats"]) == replicas)
    return Flowing(status["gateway"]["flight"])


def test_the_survivor_dies_as_soon_as_a_newcomer_has_its_state(start: Any, tmp_path: Path) -> None:
    history = tmp_path / "run" / "history"
    trial: Trial = start(PUSHED, standby=1)
    with flowing(trial) as rows:
        trial.wait_running()
        survivor, newcomer = trial.process_in("holder"), trial.process_in("standby")
        trial.kill("sender")
        trial.wait(
            "a newcomer that has its state",
            lambda _: '"kind":"installed"' in "".join(p.read_text() for p in history.glob(f"{newcomer}.*")),
        )
        # Its engine has done nothing yet, so it is not active.
        trial.kill(survivor)
        trial.wait_decided()
    trial.wait_finished()
    assert account(tmp_path) == rows.account()
    assert_history_is_clean(tmp_path)


def test_two_of_three_replicas_die_at_the_same_instant_and_nothing_is_lost(
    start: Any, tmp_path: Path
) -> None:
    rows = 300_000
    trial: Trial = start(generated(rows, rows_per_s=10_000), nodes=3, replicas=3)
    trial.wait_running()
    assert len(set(trial.kill_at_once(["sender", "holder"]))) == 2
    # Between suspicion and the end of their sessions, one of the dead may be tried as a standby.
    trial.wait(
        "a single survivor",
        lambda s: sorted(seat["status"] for seat in s["seats"].values()) == ["ACTIVE", "DEAD", "DEAD"],
    )
    trial.wait_finished()
    assert account(tmp_path) == (rows, rows * (rows - 1) // 2)
    assert_history_is_clean(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_replica_that_loses_only_its_java_is_dead_like_any_other(
    start: Any, tmp_path: Path, number: signal.Signals
) -> None:
    trial: Trial = start(PUSHED)
    with flowing(trial) as rows:
        trial.wait_running()
        node = psutil.Process(trial.run.pid(trial.process_in("sender")))
        java = next(child for child in node.children(recursive=True) if "java" in child.name())
        java.send_signal(number)
        trial.wait("a death", lambda s: any(seat["status"] == "DEAD" for seat in s["seats"].values()))
    trial.wait_finished()
    # The run is over without it; a node that fails has some seconds to end.
    java.wait(timeout=30)
    assert account(tmp_path) == rows.account()
    assert_history_is_clean(tmp_path)


def test_a_replica_moves_to_a_standby_and_back_while_rows_flow(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    trial: Trial = start(PUSHED, standby=1)
    with flowing(trial) as rows:
        trial.wait_running()
        emptied, taking = trial.process_in("primary"), trial.process_in("standby")
        assert main(["drain", emptied, folder]) == 0
        assert trial.process_in("primary") == taking
        assert main(["drain", emptied, folder, "--undo"]) == 0
        assert main(["move", "counts/0:0", emptied, folder]) == 0
        assert "a copy of the whole flow" in capsys.readouterr().out
        assert trial.process_in("primary") == emptied
    trial.wait_finished()
    assert account(tmp_path) == rows.account()
    assert_history_is_clean(tmp_path)


def test_a_stopped_sender_is_fenced_and_comes_back_as_a_standby(start: Any, tmp_path: Path) -> None:
    trial: Trial = start(PUSHED)
    with flowing(trial) as rows:
        trial.wait_running()
        stopped = trial.kill("sender", signal.SIGSTOP)
        trial.wait_decided()
        trial.kill(stopped, signal.SIGCONT)
        status = trial.wait(
            "the return of the stopped node",
            lambda s: any(x["status"] == "STDBY" for x in s["seats"].values()),
        )
        returned = next(seat["node"] for seat in status["seats"].values() if seat["status"] == "STDBY")
        assert returned == f"{stopped}.1", "it is the same process, without the state it had"
        trial.wait_running()
    trial.wait_finished()
    assert account(tmp_path) == rows.account()
    assert_history_is_clean(tmp_path)


def test_a_killed_gateway_takes_every_push_once_and_delivers_it_once(start: Any, tmp_path: Path) -> None:
    trial: Trial = start(PUSHED)
    status = trial.wait("two replicas", lambda s: sends(s) and len(s["seats"]) == 2)
    address = status["gateway"]["flight"]
    pushes, pushed = 60, threading.Semaphore(0)
    pushing = threading.Thread(target=push_all, args=(address, range(pushes), pushed), daemon=True)
    pushing.start()
    for _ in range(2):
        for _ in range(15):
            assert pushed.acquire(timeout=60)
        trial.kill("gateway")
        trial.wait("another gateway", lambda s: s["began_again"])
    pushing.join(timeout=120)
    assert not pushing.is_alive()
    trial.wait_finished()
    rows = pushes * PUSH_ROWS
    assert account(tmp_path) == (rows, rows * (rows - 1) // 2)
    assert_history_is_clean(tmp_path)


def address_of(trial: Trial, node: str) -> str:
    settings = trial.run.settings
    with Coordination(settings.zookeeper, settings.run) as coordination:
        facts = next(member.facts for member in coordination.members() if member.name == node)
        return str(facts["flight"])


def test_strangers_are_refused_and_a_run_leaves_nothing_behind(start: Any) -> None:
    trial: Trial = start(PUSHED, nodes=1, policy="none")
    status = trial.wait("a replica", sends)
    address = status["gateway"]["flight"]

    with Client(address) as client:
        with pytest.raises(us.RowError, match="value"):
            client.push("numbers", [{"key": 1, "value": "many", "ts": BASE}])
        with pytest.raises(us.FlowError, match="no source 'letters'"):
            client.push("letters", [{"key": 1}])

    silent: dict[str, Any] = {
        "on_open": lambda _c: None,
        "on_frame": lambda _f: None,
        "on_closed": lambda _w: None,
    }
    with pytest.raises(Refused, match="must name itself and number its attempts"):
        connect(address, "peer", {"node": "node-9.1"}, **silent)
    wanted = {"node": "node-9.1", "standby": "counts/0:0", "epoch": 1, "lender": "counts/0:0", "version": 1}
    with pytest.raises(Fenced, match=r"node-9\.1 does not hold counts/0:0"):
        connect(address_of(trial, "node-1.1"), "state", wanted, **silent)
    stranger = flight.connect(f"grpc://{address}")
    with pytest.raises(flight.FlightServerError, match="only exchanges"):
        stranger.do_get(flight.Ticket(b"everything")).read_all()

    family = [
        process
        for child in trial.run.children.values()
        for process in [
            psutil.Process(child.process.pid),
            *psutil.Process(child.process.pid).children(recursive=True),
        ]
    ]
    trial.run.stop()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(process.is_running() for process in family):
        time.sleep(0.1)
    assert not [process for process in family if process.is_running()]
