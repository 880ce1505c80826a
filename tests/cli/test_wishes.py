"""`understudy move` and `understudy drain` against a real ZooKeeper and leader; nodes are names only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from understudy.cli import wishing
from understudy.cli.drain import look as look_at_drain
from understudy.cli.main import main
from understudy.cli.move import look as look_at_move
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology, chain_of
from understudy.core.timers import TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    ControllerEvent,
    CopyCaughtUp,
    CopyMoveFailed,
    Drain,
    MemberJoined,
    MembersLeft,
    MoveCopy,
)
from understudy.core.view.view import Status, View
from understudy.flow.policy import policy_named
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.members import Membership
from understudy.runtime.coordination.reports import written
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.settings import RunSettings

pytestmark = pytest.mark.zookeeper

SHAPE = chain_of(sessions=2, stats=2)
COPY = Copy(Partition("sessions", 0), 0)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Run:
    """A run of three nodes, two of them with all the seats."""

    def __init__(self, settings: RunSettings, coordination: Coordination) -> None:
        self.folder = settings.folder
        self.coordination = coordination
        self.members: dict[str, Membership] = {}
        self.begun = threading.Event()
        coordination.watch_view(lambda _view: self.begun.set())
        for number in (1, 2, 3):
            self.join(f"node-{number}.1")

    def join(self, name: str) -> None:
        # A process id that no machine has.
        self.members[name] = self.coordination.join("node", name, {"pid": 2**30})

    def let_standbys(self, report: type[CopyCaughtUp | CopyMoveFailed]) -> None:
        """Every standby ends so, as soon as it is seated."""

        def tell(view: View) -> None:
            for copy, seat in view.seats.items():
                if seat.status is Status.STDBY:
                    self.coordination.report(*written(report(copy, seat.epoch)))

        self.coordination.watch_view(tell)

    @property
    def view(self) -> View:
        stored = self.coordination.view()
        assert stored is not None
        return stored.view


@pytest.fixture
def settings(zookeeper: ZooKeeperServer, tmp_path: Path) -> RunSettings:
    made = RunSettings(
        tmp_path.name, "flow.py", str(tmp_path / "run"), zookeeper.address, policy=policy_named("flux")
    )
    made.save()
    return made


@contextmanager
def led(settings: RunSettings, shape: Topology) -> Iterator[Run]:
    with Coordination(settings.zookeeper, settings.run) as coordination:
        made = Run(settings, coordination)
        leadership = Leadership(coordination, "gateway", partial(Controller, shape, 2, 2)).start()
        assert made.begun.wait(10.0)
        yield made
        leadership.stop()


@pytest.fixture
def run(settings: RunSettings) -> Iterator[Run]:
    with led(settings, SHAPE) as made:
        yield made


def test_a_move_is_followed_until_the_copy_is_active_there(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.let_standbys(CopyCaughtUp)
    assert main(["move", "sessions/0:0", "node-3", run.folder]) == 0
    assert run.view.seat(COPY).node == "node-3.1"
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "sessions/0:0 is to move to node-3.1"
    assert out[-1].startswith("sessions/0:0 is active on node-3.1 (epoch ")


def test_without_a_replica_it_is_said_which_copy_moves(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.let_standbys(CopyCaughtUp)
    assert main(["move", "sessions/0:PRIM", "node-3", run.folder]) == 0
    capsys.readouterr()
    assert main(["move", "sessions/0", "node-1", run.folder]) == 0
    assert "sessions/0:1 is to move to node-1.1; of its copies it sits on the fuller node" in (
        capsys.readouterr().out
    )


def test_a_move_that_is_declined_ends_with_1_and_the_reason(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["move", "sessions/0:PRIM", "node-2", run.folder]) == 1
    assert main(["move", "nothing/0", "node-3", run.folder]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("declined: node-2.1 holds another copy of sessions/0")
    assert second.startswith("declined: there is no partition nothing/0; there are sessions/0, sessions/1")


def test_a_move_that_fails_on_the_way_ends_with_1(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.let_standbys(CopyMoveFailed)
    # Every node that is tried fails; the wish is over with the first.
    assert main(["move", "sessions/0:PRIM", "node-3", run.folder]) == 1
    assert "sessions/0:0 cannot move to node-3.1 any more" in capsys.readouterr().out


def test_ctrl_c_ends_the_following_and_not_the_move(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_look(view: View, copy: Copy, node: str) -> wishing.WishProgress:
        os.kill(os.getpid(), signal.SIGINT)
        return look_at_move(view, copy, node)

    monkeypatch.setattr("understudy.cli.move.look", interrupted_look)
    assert main(["move", "sessions/0:PRIM", "node-3", run.folder]) == 130
    assert "the wish goes on" in capsys.readouterr().out
    assert run.view.wanted == {COPY: "node-3.1"}


def test_a_wish_is_void_when_the_run_was_upgraded_meanwhile(
    run: Run, settings: RunSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No view of these nodes comes any more."""

    def upgraded(view: View, copy: Copy, node: str) -> wishing.WishProgress:
        replace(settings, version=2).save()
        return look_at_move(view, copy, node)

    monkeypatch.setattr("understudy.cli.move.look", upgraded)
    assert main(["move", "sessions/0:PRIM", "node-3", run.folder]) == 1
    assert (
        "The run was upgraded: it goes on with other nodes, and the wish is void." in capsys.readouterr().out
    )


def test_a_node_is_drained_and_taken_back(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.let_standbys(CopyCaughtUp)
    assert main(["drain", "node-1", run.folder]) == 0
    assert run.view.copies_on("node-1.1") == []
    out = capsys.readouterr().out
    assert "node-1.1 is to be empty; it holds 4 copies" in out
    assert "node-1.1 is empty, and every copy that it held is active elsewhere" in out
    assert main(["drain", "node-2", run.folder]) == 1
    assert "declined: no other node can take sessions/0" in capsys.readouterr().err
    assert main(["drain", "node-1", run.folder, "--undo"]) == 0
    assert run.view.drained == set()


def test_a_drain_that_cannot_go_on_is_not_waited_for_for_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishing, "STALLED_S", 0.5)
    assert main(["drain", "node-1", run.folder, "--no-wait"]) == 0
    run.members["node-3.1"].leave()
    assert main(["drain", "node-1", run.folder]) == 1
    assert "Nothing is moving" in capsys.readouterr().out
    assert run.view.drained == {"node-1.1"}


def test_without_waiting_the_answer_is_enough(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["move", "stats/1:SEC", "node-3", run.folder, "--no-wait"]) == 0
    assert capsys.readouterr().out == "stats/1:1 is to move to node-3.1\n"


def test_without_a_leader_the_command_says_so(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishing, "ANSWER_TIMEOUT_S", 0.2)
    assert main(["drain", "node-1", settings.folder]) == 3
    assert "No process leads run" in capsys.readouterr().err


def test_a_whole_flow_moves_like_any_partition(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with led(replace(settings, policy=policy_named("pair")), chain_of(sessions=1)) as run:
        run.let_standbys(CopyCaughtUp)
        assert main(["move", "sessions/0:0", "node-3", run.folder]) == 0
        assert run.view.seat(COPY).node == "node-3.1"
        assert "sessions/0:0, a copy of the whole flow, is to move to node-3.1" in capsys.readouterr().out
        assert main(["drain", "node-2", run.folder]) == 0
        assert run.view.seat(Copy(COPY.partition, 1)).node == "node-1.1"


def test_a_single_copy_cannot_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunSettings("run", "flow.py", str(tmp_path), "127.0.0.1:1", policy=policy_named("none")).save()
    assert main(["drain", "node-1", str(tmp_path)]) == 2
    assert "has policy 'none', which runs one copy of everything" in capsys.readouterr().err


def test_a_role_that_several_nodes_have_names_none_of_them(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kill", "primary", run.folder]) == 2
    assert "several nodes are each primary of some partitions" in capsys.readouterr().err


def controller(*events: ControllerEvent) -> Controller:
    made = Controller(SHAPE, 2, 2)
    for order, name in enumerate("abc"):
        made.handle(MemberJoined(name, order))
    for event in events:
        made.handle(event)
    return made


@pytest.mark.parametrize(
    ("events", "sentence", "done"),
    [
        ([MoveCopy(COPY, "c")], "is catching up on c", None),
        ([MoveCopy(COPY, "c"), Drain("c")], "c is being drained", False),
        ([MoveCopy(COPY, "c"), MembersLeft(("c",))], "cannot move to c any more", False),
        (
            [
                MoveCopy(COPY, "c"),
                *(MembersLeft((node,)) for node in "bac"),
                *(TimerFired(("missed", node)) for node in "bc"),
            ],
            "The flow is lost",
            False,
        ),
    ],
)
def test_how_far_a_move_is(events: list[ControllerEvent], sentence: str, done: bool | None) -> None:
    view = controller(*events).view
    assert view is not None
    seen = look_at_move(view, COPY, "c")
    assert sentence in seen.sentence
    assert seen.done is done


@pytest.mark.parametrize(
    ("events", "sentence", "done"),
    [
        ([Drain("a")], "a holds 2 copies; catching up: sessions/0:0 on c", None),
        ([Drain("c")], "c is empty", True),
        ([Drain("c"), MembersLeft(("c",))], "c is not being drained any more", False),
    ],
)
def test_how_far_a_drain_is(events: list[ControllerEvent], sentence: str, done: bool | None) -> None:
    before, view = controller().view, controller(*events).view
    assert before is not None
    assert view is not None
    assert isinstance(events[0], Drain)
    node = events[0].node
    seen = look_at_drain(view, before.copies_on(node), node)
    assert sentence in seen.sentence
    assert seen.done is done
