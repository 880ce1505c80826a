"""A real gateway on a real ZooKeeper, in this process: how it comes up, when its work is done, how it ends.

There are no nodes: a test puts output straight into the delivery, as if copies had sent it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import understudy as us
from understudy.core.bucket import NOTHING, Bucket
from understudy.flow.policy import policy_named
from understudy.history.reading import records_of
from understudy.history.records import DeliveredRecord
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.gateway.intake import now_us
from understudy.runtime.gateway.journal import DeliveredRange, Journal
from understudy.runtime.gateway.process import Gateway
from understudy.runtime.ingest.buckets import end_bucket
from understudy.runtime.partitioning import Dataflow, controller_for
from understudy.runtime.process import Ending, finished_file, opened_file, ready_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import RunStatus

pytestmark = pytest.mark.zookeeper

WAIT_S = 60.0
WIDTH_US = 100_000
END = end_bucket(WIDTH_US)

#: Two sinks whose writers say that they close, and wait for leave to.
FLOW = """
import time
from dataclasses import dataclass
from pathlib import Path

import understudy as us

class Slow(us.Writer):
    def __init__(self, mark):
        self._mark = mark

    def deliver(self, rows, first, through):
        pass

    def close(self):
        self._mark.with_suffix(".closing").touch()
        while not self._mark.with_suffix(".leave").exists():
            time.sleep(0.01)
        self._mark.with_suffix(".closed").touch()

@dataclass(frozen=True)
class SlowToClose(us.SinkKind):
    def open(self, sink, folder):
        return Slow(folder / sink)

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, SlowToClose(), name="one")
flow.sink(same, SlowToClose(), name="two")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, server: ZooKeeperServer) -> RunSettings:
    (tmp_path / "flow.py").write_text(FLOW)
    folder = tmp_path / "run"
    folder.mkdir()
    return RunSettings(
        tmp_path.name,
        str(tmp_path / "flow.py"),
        str(folder),
        server.address,
        policy=policy_named("none"),
        nodes=1,
    )


def may_close(settings: RunSettings) -> None:
    for sink in ("one", "two"):
        (settings.path / f"{sink}.leave").touch()


class Life:
    """A gateway from its start to its end, in a thread of its own."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.ending = Ending()
        self.gateway = Gateway(settings, self.ending)
        self._thread = threading.Thread(target=self.gateway.run, name="gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.until(ready_file(self.settings.path, "gateway").exists)

    def client(self) -> us.Client:
        return us.Client(self.gateway._endpoint.address, timeout_s=WAIT_S)

    def push_at(self, bucket: int) -> None:
        """One row in this bucket; the ones before it are then sealed."""
        with self.client() as client:
            client.push("rows", [{"k": 1, "ts": bucket * WIDTH_US}])
        self.until(lambda: self.gateway._intake._ingest.sealed_through["rows"] >= bucket - 1)

    def deliver_through(self, sink: str, bucket: int) -> None:
        self.gateway.deliver(sink, [Bucket(bucket)], 1)

        def delivered() -> bool:
            return (self.gateway._versions.delivered_through or {}).get(sink) == bucket

        self.until(delivered)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if self.ending.failure is not None:
                raise self.ending.failure
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s"
            time.sleep(0.01)

    def await_end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert self.ending.failure is None

    def end(self) -> None:
        may_close(self.settings)
        self.ending.ask()
        self.await_end()


@pytest.fixture
def life(settings: RunSettings) -> Iterator[Life]:
    life = Life(settings)
    life.start()
    yield life
    life.end()


def test_a_run_of_two_sinks_is_finished_when_both_hold_everything(life: Life, settings: RunSettings) -> None:
    may_close(settings)
    with Coordination(settings.zookeeper, settings.run) as node:
        node.join("node", "node-1.1", {"flight": "127.0.0.1:1", "pid": 1, "node": "node-1"})
        with life.client() as client:
            client.push("rows", [{"k": 1, "ts": 5 * WIDTH_US}])
            client.close_source("rows")
        life.deliver_through("one", END)
        assert not life.gateway._finished()
        assert not finished_file(settings.path).exists()
        life.gateway.deliver("two", [Bucket(END)], 1)
        life.await_end()
    assert finished_file(settings.path).exists()


def test_a_run_goes_on_after_the_bucket_of_its_last_row_until_the_windows_over_it_are_out(
    life: Life, settings: RunSettings
) -> None:
    may_close(settings)
    last, a_day_later = 5, 5 + 24 * 3_600 * 1_000_000 // WIDTH_US
    with Coordination(settings.zookeeper, settings.run) as node:
        node.join("node", "node-1.1", {"flight": "127.0.0.1:1", "pid": 1, "node": "node-1"})
        with life.client() as client:
            client.push("rows", [{"k": 1, "ts": last * WIDTH_US}])
            client.close_source("rows")
        for bucket in (last, last + 1, a_day_later):
            for sink in ("one", "two"):
                life.deliver_through(sink, bucket)
            assert not life.gateway._finished()
        for sink in ("one", "two"):
            life.gateway.deliver(sink, [Bucket(END)], 1)
        life.await_end()
    assert finished_file(settings.path).exists()


def test_a_finished_run_is_marked_before_its_writers_close_and_they_may_take_their_time(
    life: Life, settings: RunSettings
) -> None:
    with life.client() as client:
        client.close_source("rows")
    life.until((settings.path / "one.closing").exists)
    assert finished_file(settings.path).exists()
    assert not life.ending.asked, "from then on the process may be left at any moment"
    may_close(settings)
    life.await_end()
    assert (settings.path / "one.closed").exists()
    assert life.ending.asked, "the rest of the end waits for others and is bounded"


def test_a_gateway_that_is_told_to_save_takes_no_more_rows_and_tells_every_node(
    life: Life, settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    monkeypatch.setattr(life.gateway._versions, "have_all_saved", lambda: saved.append("all"))
    port = int(life.gateway._endpoint.address.rpartition(":")[2])
    status = RunStatus(replace(settings, gateway_port=port))
    assert status.ask(WAIT_S)["run"] == settings.run
    assert (saved, life.gateway._intake.wait_room("rows", 0.0)) == ([], True)
    assert status.tell("save", WAIT_S)
    assert (saved, life.gateway._intake.wait_room("rows", 0.0)) == (["all"], False)
    status.close()


def test_a_run_that_is_asked_to_end_is_not_finished(life: Life, settings: RunSettings) -> None:
    life.end()
    assert not finished_file(settings.path).exists()


def test_the_machines_end_before_the_log_that_they_write_to(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[bool] = []
    honest = life.gateway._intake.end

    def noted() -> None:
        alive.append(life.gateway._actor._thread.is_alive())
        honest()

    monkeypatch.setattr(life.gateway._intake, "end", noted)
    life.end()
    assert alive == [False]


def test_a_gateway_reads_the_view_only_after_it_has_caught_up_with_what_was_decided(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One server is never behind itself, so only the order of the calls can be seen.
    called: list[str] = []

    def note(name: str) -> None:
        honest = getattr(Coordination, name)

        def noted(self: Coordination, *given: object) -> object:
            called.append(name)
            return honest(self, *given)

        monkeypatch.setattr(Coordination, name, noted)

    for name in ("join", "await_newest", "watch_view"):
        note(name)
    life = Life(settings)
    life.start()
    life.end()
    assert called[:3] == ["join", "await_newest", "watch_view"]


def test_a_gateway_whose_zookeeper_forgot_the_view_of_the_run_does_not_begin_anew(
    settings: RunSettings,
) -> None:
    life = Life(settings)
    life.start()
    coordination = life.gateway._versions._leading._coordination
    node = coordination.join("node", "node-1.1", {"flight": "127.0.0.1:1", "pid": 1})
    life.until(lambda: life.gateway._versions.status()["epoch"] == 1)
    node.leave()
    coordination._client.delete(f"{coordination.root}/view")
    life.end()
    again = Life(settings)
    with pytest.raises(us.EnvironmentFailed, match="does not know which nodes hold the state of this run"):
        again.gateway.run()
    # Nor does a leader seat empty copies.
    with pytest.raises(us.EnvironmentFailed, match="its data is lost"):
        controller_for(Dataflow.of(again.gateway._flow, settings).topology, settings)(None)


def test_the_latency_is_that_of_the_sink_that_is_furthest_behind(life: Life) -> None:
    now = now_us() // WIDTH_US
    for sink, behind in (("one", 600), ("two", 10)):
        number = now - behind
        life.gateway._stats.delivered(sink, DeliveredRange(number - 1, number, ((number, 1, "digest"),)))
    latency_ms = life.gateway.status()["latency_ms"]
    assert 59_000 <= latency_ms <= 59_000 + 1_000 * WAIT_S


def test_a_delivery_that_was_not_on_record_when_its_gateway_died_is_recorded_once(
    settings: RunSettings,
) -> None:
    journal = Journal(settings.path / "delivery" / "one.json")
    for number in range(2):
        life = Life(settings)
        life.start()
        life.push_at(10 + number)
        life.end()
        journal.write(7, DeliveredRange(NOTHING, 7, ((3, 1, "digest"),)))
    life = Life(settings)
    life.start()
    life.end()
    records = [
        each for each in records_of(settings.history_file("gateway")) if isinstance(each, DeliveredRecord)
    ]
    assert [(each.sink, each.after, each.through, each.buckets) for each in records] == [
        ("one", NOTHING, 7, ((3, 1, "digest"),))
    ]


def test_a_gateway_that_was_killed_between_its_first_log_and_its_first_journal_comes_up(
    settings: RunSettings,
) -> None:
    life = Life(settings)
    life.start()
    life.end()
    opened_file(settings.path).unlink()
    for file in (settings.path / "delivery").iterdir():
        file.unlink()
    again = Life(settings)
    again.start()
    again.end()


@pytest.mark.parametrize("shown_by", ["delivery", "opened"])
def test_a_gateway_whose_log_is_gone_refuses_to_start(settings: RunSettings, shown_by: str) -> None:
    life = Life(settings)
    life.start()
    with life.client() as client:
        client.push("rows", [{"k": 1, "ts": 5 * WIDTH_US}])
    life.end()
    # As a launcher does before it starts a gateway again.
    ready_file(settings.path, "gateway").unlink()
    for file in (settings.path / "log").glob("*.wal"):
        file.unlink()
    if shown_by == "delivery":
        opened_file(settings.path).unlink()
    else:
        for file in (settings.path / "delivery").iterdir():
            file.unlink()
    with pytest.raises(us.EnvironmentFailed, match=rf"run/log has no segment .*although .*run/{shown_by}"):
        Life(settings)


def test_a_gateway_whose_journal_is_gone_refuses_to_start(settings: RunSettings) -> None:
    life = Life(settings)
    life.start()
    with life.client() as client:
        client.push("rows", [{"k": 1, "ts": 5 * WIDTH_US}])
    life.end()
    (settings.path / "delivery" / "two.json").unlink()
    with pytest.raises(us.EnvironmentFailed, match=r"delivery/two\.json is missing"):
        Life(settings)


def test_a_gateway_whose_log_lacks_its_newest_part_refuses_to_start(settings: RunSettings) -> None:
    log, copy = settings.path / "log", settings.path / "copy"
    for bucket in (10, 20):
        life = Life(settings)
        life.start()
        life.push_at(bucket)
        life.gateway.deliver("two", [Bucket(bucket - 1)], 1)
        life.end()
        if bucket == 10:
            shutil.copytree(log, copy)
    shutil.rmtree(log)
    copy.rename(log)
    with pytest.raises(us.EnvironmentFailed, match=r"ends with bucket \d+, although sink 'two' .* bucket 19"):
        Life(settings)
