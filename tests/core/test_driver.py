"""The driver: every instruction of a host reaches its port, and own parcels come back in turn."""

from __future__ import annotations

from collections.abc import Hashable

from core_kit import copies, run, seats, view
from host_kit import SINK, SOURCE, TOPOLOGY, working

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.driver import Driver
from understudy.core.edge.messages import Ack, Data, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.edge.refill import PIECE_BYTES
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Began,
    FetchState,
    Inside,
    Offering,
    Parcel,
    ParcelFrom,
    PeerUp,
    Relay,
    Request,
    Say,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Processed,
    Received,
    Saved,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import TimerFired
from understudy.core.view.events import CopyMoveFailed, Report

FIRST, SECOND = copies("f", 2)
WAITING = view(3, f=seats(3, "a", "d@3 STDBY"))


class Recording:
    """Ports that only write down what they were asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def since(self) -> list[tuple[object, ...]]:
        calls, self.calls = self.calls, []
        return calls

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        self.calls.append(("send", node, parcel, cause))

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        self.calls.append(("cut", node, serial, why))

    def start(self, copy: Copy, epoch: int) -> None:
        self.calls.append(("start", copy, epoch))

    def wait(self, copy: Copy, epoch: int) -> None:
        self.calls.append(("wait", copy, epoch))

    def fetch(self, wanted: FetchState) -> None:
        self.calls.append(("fetch", wanted))

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        self.calls.append(("hold", copy, epoch, attempt))

    def start_held(self, copy: Copy, epoch: int) -> None:
        self.calls.append(("start held", copy, epoch))

    def leave(self, copy: Copy, epoch: int) -> None:
        self.calls.append(("leave", copy, epoch))

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        self.calls.append(("process", copy, epoch, [bucket.number for bucket in buckets]))

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        self.calls.append(("snapshot", copy, epoch, version))

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        self.calls.append(("lend", copy, epoch, state))

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        self.calls.append(("unlend", copy, epoch, version))

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        self.calls.append(("save", copy, epoch, version))

    def read_again(self, source: Copy, consumer: Copy, after: int, bytes_max: int) -> None:
        self.calls.append(("read again", source, consumer, after, bytes_max))

    def rests(self, sink: Copy, through: int) -> None:
        self.calls.append(("rests", sink, through))

    def report(self, report: Report) -> None:
        self.calls.append(("report", report))

    def timer(self, key: Hashable, delay_ms: int) -> None:
        self.calls.append(("timer", key, delay_ms))


def driven(host: Host) -> tuple[Driver, Recording]:
    ports = Recording()
    return Driver(host, ports), ports


def test_a_seat_is_started_worked_in_and_left() -> None:
    driver, ports = driven(Host("b", TOPOLOGY))
    driver.handle(ViewSeen(view(1, f=seats(1, "a", "b"))))
    assert ports.since() == [("start", SECOND, 1), ("timer", ("absent", GATEWAY), 4_000)]
    driver.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD"))))
    assert ports.since() == [("leave", SECOND, 1)]


def test_data_becomes_work_and_every_parcel_names_the_event_that_caused_it() -> None:
    host = working()
    driver, ports = driven(host)
    cause = host.events_handled + 1
    driver.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(1, 2)))))
    assert ports.since() == [
        ("send", GATEWAY, Say(FIRST, SOURCE, 1, Ack(2)), cause),
        ("process", FIRST, 1, [1, 2]),
    ]
    driver.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Ack(1))))
    ((what, node, serial, why),) = ports.since()
    assert (what, node, serial) == ("cut", GATEWAY, 1)
    assert "does not take" in str(why)
    driver.handle(Inside(FIRST, 1, Processed()))
    assert ports.since() == []


def test_a_standby_waits_fetches_and_reports() -> None:
    driver, ports = driven(Host("d", TOPOLOGY))
    driver.handle(ViewSeen(WAITING))
    assert ports.since()[0] == ("wait", SECOND, 3)
    driver.handle(PeerUp("a", 1))
    assert ports.since() == [
        ("send", "a", Relay(WAITING), 2),
        ("send", "a", Request(SECOND, 3, FIRST, 1), 2),
        ("timer", ("ask", SECOND, 3), 500),
    ]
    driver.handle(TimerFired(("ask", SECOND, 3)))
    assert ports.since() == [
        ("send", "a", Request(SECOND, 3, FIRST, 1), 3),
        ("timer", ("ask", SECOND, 3), 500),
    ]
    for attempt in (1, 2, 3):
        driver.handle(ParcelFrom("a", 1, Offering(FIRST, 1, SECOND, 3, attempt, 7)))
        assert ports.since() == [("fetch", FetchState(SECOND, 3, "a", FIRST, attempt, 7))]
        driver.handle(Inside(SECOND, 3, FetchFailed(attempt, "broken")))
        failed = ports.since()
    assert failed == [("report", CopyMoveFailed(SECOND, 3, "broken"))]


def test_a_lender_snapshots_lends_and_forgets() -> None:
    host = working()
    driver, ports = driven(host)
    driver.handle(ViewSeen(WAITING))
    driver.handle(PeerUp("d", 1))
    ports.since()
    driver.handle(ParcelFrom("d", 1, Request(SECOND, 3, FIRST, 1)))
    assert ports.since() == [("snapshot", FIRST, 1, 1)]
    driver.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    outlet = OutletState((), NOTHING, NOTHING, ((0, NOTHING),))
    assert ports.since()[0] == ("lend", FIRST, 1, CopyState(1, NOTHING, ((SINK.partition, outlet),)))
    driver.handle(ViewSeen(view(4, f=seats(4, "a", "d@3"))))
    assert ports.since() == [("unlend", FIRST, 1, 1)]


def test_a_backup_fetches_holds_and_starts_from_what_it_holds() -> None:
    host = Host("d", TOPOLOGY, timing=Timing(ship_ms=500))
    driver, ports = driven(host)
    driver.handle(ViewSeen(WAITING))
    driver.handle(PeerUp("a", 1))
    ports.since()
    driver.handle(ParcelFrom("a", 1, Offering(FIRST, 1, SECOND, 3, 1, 1)))
    assert ports.since() == [("fetch", FetchState(SECOND, 3, "a", FIRST, 1, 1, hold=True))]
    driver.handle(Inside(SECOND, 3, Received(1, 10)))
    assert ports.since()[0] == ("hold", SECOND, 3, 1)
    driver.handle(ViewSeen(view(5, f=seats(5, "a DEAD", "d@3"))))
    assert ports.since()[0] == ("start held", SECOND, 3)


def test_a_copy_saves_its_state() -> None:
    host = Host("a", TOPOLOGY, timing=Timing(save_ms=1_000))
    driver, ports = driven(host)
    driver.handle(ViewSeen(view(1, f=seats(1, "a"))))
    driver.handle(PeerUp(GATEWAY, 1))
    driver.handle(Began(FIRST, 1))
    driver.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, FIRST, 1, NOTHING)))
    driver.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(1)))))
    driver.handle(Inside(FIRST, 1, Processed()))
    ports.since()
    driver.handle(TimerFired(("save", FIRST, 1)))
    assert ports.since() == [("timer", ("save", FIRST, 1), 1_000), ("snapshot", FIRST, 1, 1)]
    driver.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert ports.since()[1:] == [("save", FIRST, 1, 1)]
    driver.handle(Inside(FIRST, 1, Saved(1, 1)))
    assert ports.since()[0] == ("unlend", FIRST, 1, 1)


def test_a_source_has_its_log_read_again() -> None:
    host = Host(GATEWAY, TOPOLOGY, timing=Timing(save_ms=1_000), trimmed={"source": 4})
    driver, ports = driven(host)
    driver.handle(ViewSeen(view(1, f=seats(1, "a"))))
    driver.handle(PeerUp("a", 1))
    driver.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, 2)))
    ports.since()
    driver.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Reverse(2))))
    assert ports.since() == [("read again", SOURCE, FIRST, 2, PIECE_BYTES)]


def test_parcels_to_the_own_host_do_not_leave_it_and_are_handled_before_the_driver_returns() -> None:
    host = Host("a", chain_of(low=1, high=1))
    driver, ports = driven(host)
    driver.handle(ViewSeen(view(1, low=seats(1, "a"), high=seats(1, "a"))))
    low, high = Copy(Partition("low")), Copy(Partition("high"))
    driver.handle(Began(low, 1))
    driver.handle(Began(high, 1))
    assert [call for call in ports.since() if call[0] == "send"] == []
    assert high in host.residents[low].edges
    assert low in host.residents[high].edges
    *_, attach, welcome, reverse = host.story().splitlines()
    for line, parcel in ((attach, "Attach"), (welcome, "Welcome"), (reverse, repr(Reverse(NOTHING)))):
        number = int(line.split(maxsplit=1)[0])
        assert parcel in line
        assert f"cause={number - 1})" in line, "each follows from the one before"
