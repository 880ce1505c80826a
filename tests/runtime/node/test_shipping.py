"""Snapshots shipped to a backup: only what it lacks, verified before it is held, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_node import COPY, EPOCH, SINK, STANDBY, WAIT_S, Node, eventually

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import PeerError
from understudy.core.host.parcels import Began, FetchState
from understudy.core.replica.events import CopyState, FetchFailed, Received
from understudy.engine.storing import Digests, seal_snapshot, verify_snapshot
from understudy.runtime.node.copy import HostedCopy
from understudy.runtime.node.mover import PURPOSE, StateFetch, has_of, send_state
from understudy.runtime.node.shipped import Lent
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted

LARGE_BYTES = 300_000


def output(*numbers: int) -> tuple[Bucket, ...]:
    return tuple(Bucket(n, n.to_bytes(8, "big") * 16, 128) for n in numbers)


def state(version: int, *numbers: int, gone: int = NOTHING) -> CopyState:
    """The state of a copy that keeps this output, the last of which is the last that it has put out."""
    return CopyState(
        version, numbers[-1], ((SINK, OutletState(output(*numbers), numbers[-1], gone, ((0, gone),))),)
    )


class Lender:
    """A node that lends whatever snapshot a test has put there last."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lent: Lent | None = None
        self.hellos: list[dict[str, Any]] = []
        self.held_back = threading.Event()
        self.held_back.set()
        node.endpoint.handle(PURPOSE, self._admit)
        node.endpoint.ready()

    def _admit(self, hello: Any) -> Accepted:
        self.hellos.append(dict(hello))
        has, lent = has_of(hello), self.lent
        assert lent is not None

        def send(channel: Channel) -> None:
            self.held_back.wait(WAIT_S)
            send_state(channel, lent.snapshot.directory, lent.state, has)

        def opened(channel: Channel) -> None:
            threading.Thread(target=send, args=(channel,), daemon=True).start()

        return Accepted(opened, lambda _frame: None, lambda _why: None)

    def lends(self, kept: CopyState, **files: bytes) -> None:
        """Keep a snapshot of these files, by name."""
        folder = self.node.folder / f"lent-{len(list(self.node.folder.glob('lent-*')))}"
        (folder / "state").mkdir(parents=True)
        (folder / "state" / "seen").write_text(str(kept.through))
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
        facts = {"through": kept.through, "output_through": kept.through}
        self.lent = Lent(seal_snapshot(folder, facts, Digests()), kept)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for leaving in [copy.end() for copy in made.copies]:
        leaving.join(WAIT_S)
    made.recorder.close()
    made.endpoint.end()


@pytest.fixture
def lender(node: Node) -> Lender:
    return Lender(node)


def begin_fetch(node: Node, backup: HostedCopy, attempt: int) -> StateFetch:
    wanted = FetchState(backup.copy, EPOCH, "n1", COPY, attempt, 1, hold=True)
    fetch = StateFetch(node.endpoint.address, wanted, "n2", node.settings, backup.shipped.to_build_on)
    backup.fetch(wanted, fetch)
    return fetch


def ships(node: Node, backup: HostedCopy, attempt: int) -> StateFetch:
    """Fetch what is lent and hold it."""
    fetch = begin_fetch(node, backup, attempt)
    assert node.next(Received).attempt == attempt
    backup.hold(attempt)
    return fetch


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def folders(backup: HostedCopy) -> list[str]:
    return sorted(path.name for path in backup._parts.folder.glob("held-*"))


def assert_same(backup: HostedCopy, lender: Lender) -> None:
    """What is held is what was lent, and sound."""
    assert backup.shipped.held is not None and lender.lent is not None
    assert backup.shipped.held.state == lender.lent.state
    assert contents(backup.shipped.held.snapshot.directory) == contents(lender.lent.snapshot.directory)
    verify_snapshot(backup.shipped.held.snapshot)


def manifest_bytes(lender: Lender) -> int:
    assert lender.lent is not None
    return (lender.lent.snapshot.directory / "manifest.json").stat().st_size


# --- only what is lacking ----------------------------------------------------------------------------------


def test_only_files_and_output_that_the_backup_lacks_are_sent(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1, 2, 3), old=bytes(LARGE_BYTES))
    assert ships(node, backup, 1).received_bytes > LARGE_BYTES
    assert_same(backup, lender)
    lender.lends(state(2, 2, 3, 4, gone=1), old=bytes(LARGE_BYTES), new=b"x" * 1_000)
    fetch = ships(node, backup, 2)
    assert fetch.received_bytes == 1_000 + len("4") + manifest_bytes(lender)
    assert fetch.output_bytes == 128, "bucket 4 alone"
    assert_same(backup, lender)
    assert backup.shipped.size_bytes > LARGE_BYTES


def test_a_file_that_was_renamed_is_linked_under_its_new_name(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=bytes(LARGE_BYTES))
    ships(node, backup, 1)
    lender.lends(state(2, 2, gone=1), b=bytes(LARGE_BYTES))
    assert ships(node, backup, 2).received_bytes < LARGE_BYTES
    assert_same(backup, lender)


def test_a_lender_that_has_taken_over_has_other_files_and_keeps_older_output(
    node: Node, lender: Lender
) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 5, 6, gone=4), a=b"of the first" * 99)
    ships(node, backup, 1)
    lender.lends(state(9, 2, 3, 4, 5, 6, 7, gone=1), b=b"of the second" * 99)
    fetch = ships(node, backup, 2)
    assert fetch.output_bytes == 4 * 128, "5 and 6 are held"
    assert_same(backup, lender)


def test_what_is_held_of_an_outlet_that_is_gone_is_left_out(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1, 2), a=b"a")
    ships(node, backup, 1)
    lender.lends(CopyState(2, 3, ()), a=b"a")
    ships(node, backup, 2)
    assert_same(backup, lender)


# --- what is damaged ---------------------------------------------------------------------------------------


def test_a_damaged_held_file_is_noticed_and_the_next_snapshot_comes_whole(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=bytes(LARGE_BYTES))
    ships(node, backup, 1)
    assert backup.shipped.held is not None
    (backup.shipped.held.snapshot.directory / "a").write_bytes(b"z" * LARGE_BYTES)
    lender.lends(state(2, 2), a=bytes(LARGE_BYTES))
    begin_fetch(node, backup, 2)
    assert "a is not what was written" in node.next(FetchFailed).why
    assert folders(backup) == ["held-1"]
    assert ships(node, backup, 3).received_bytes > LARGE_BYTES
    assert_same(backup, lender)
    lender.lends(state(3, 3), a=bytes(LARGE_BYTES))
    assert ships(node, backup, 4).received_bytes < LARGE_BYTES, "and then only what is lacking"


def test_a_held_snapshot_without_its_manifest_harms_nothing_but_the_fetch(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"a")
    ships(node, backup, 1)
    assert backup.shipped.held is not None
    (backup.shipped.held.snapshot.directory / "manifest.json").unlink()
    begin_fetch(node, backup, 2)
    assert "has no manifest.json" in node.next(FetchFailed).why
    ships(node, backup, 3)
    assert_same(backup, lender)
    assert node.failures == []


def test_a_file_that_is_damaged_on_its_way_is_not_held(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"right")
    assert lender.lent is not None
    (lender.lent.snapshot.directory / "a").write_bytes(b"wrong")
    begin_fetch(node, backup, 1)
    assert "a is not what was written" in node.next(FetchFailed).why
    assert backup.shipped.held is None
    assert folders(backup) == []


def test_a_lender_whose_manifest_is_damaged_breaks_off(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"a")
    ships(node, backup, 1)
    lender.lends(state(2, 2), a=b"a")
    assert lender.lent is not None
    (lender.lent.snapshot.directory / "manifest.json").write_text("no manifest")
    begin_fetch(node, backup, 2)
    node.next(FetchFailed)
    assert backup.shipped.held is not None


def test_a_manifest_that_leads_out_of_its_folder_links_nothing(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"same")
    ships(node, backup, 1)
    lender.lends(state(2, 2), a=b"same")
    assert lender.lent is not None
    manifest = lender.lent.snapshot.directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"a"', '"../../outside"'))
    begin_fetch(node, backup, 2)
    assert "leads out of its folder" in node.next(FetchFailed).why
    assert not list(node.folder.rglob("outside"))


@pytest.mark.parametrize(
    "hello",
    [
        {"digests": 5},
        {"digests": None},
        {"outputs": 5},
        {"outputs": [1]},
        {"outputs": {"sink/0": 5}},
        {"outputs": {"sink/0": [1]}},
        {"outputs": {"sink/0": [1, None]}},
        {"outputs": {"sink/0": [1, "x"]}},
        {"outputs": {"sink/0": [1, float("inf")]}},
        {"outputs": {"sink/0": [1, 2, 3]}},
    ],
    ids=str,
)
def test_a_backup_that_does_not_say_what_it_has_is_refused(hello: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="must say what it has"):
        has_of(hello)


def test_a_backup_that_claims_what_it_does_not_have_harms_itself_alone(node: Node, lender: Lender) -> None:
    lender.lends(state(1, 1, 2), a=b"a")
    assert lender.lent is not None
    before = contents(lender.lent.snapshot.directory)
    has = has_of(
        {"digests": ["none", "of", "these"], "outputs": {str(SINK): [-5, 2**80], "strange/7": [0, 1]}}
    )
    assert not any(has.lacks(SINK, bucket) for bucket in output(1, 2))
    assert contents(lender.lent.snapshot.directory) == before


# --- taking over, and what is left behind ------------------------------------------------------------------


def test_a_take_over_starts_from_what_is_held_with_the_queries_that_were_built(
    node: Node, lender: Lender
) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1, 2), a=b"a")
    ships(node, backup, 1)
    eventually(lambda: len(node.engines) == 1)
    (spare,) = node.engines
    assert spare.started_from is None
    backup.start_held()
    began = node.next(Began)
    assert began == Began(STANDBY, EPOCH, state(1, 1, 2))
    assert spare.started_from is not None
    assert spare.through == 2
    assert len(node.engines) == 1
    eventually(lambda: folders(backup) == [])


def test_many_shipments_leave_one_folder(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    for attempt in range(1, 15):
        lender.lends(state(attempt, attempt), **{f"file-{attempt % 3}": bytes([attempt])})
        ships(node, backup, attempt)
        assert folders(backup) == [f"held-{attempt}"]


def test_a_snapshot_that_the_host_did_not_want_is_removed_with_the_next_one(
    node: Node, lender: Lender
) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"a")
    ships(node, backup, 1)
    begin_fetch(node, backup, 2)
    node.next(Received)
    assert folders(backup) == ["held-1", "held-2"]
    ships(node, backup, 3)
    assert folders(backup) == ["held-3"]


def test_a_snapshot_that_comes_after_the_take_over_leaves_nothing(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=b"a")
    ships(node, backup, 1)
    begin_fetch(node, backup, 2)
    node.next(Received)
    backup.start_held()
    node.next(Began)
    eventually(lambda: folders(backup) == [])


def test_a_copy_that_leaves_while_it_receives_leaves_nothing_behind(node: Node, lender: Lender) -> None:
    backup = node.copy(STANDBY)
    lender.lends(state(1, 1), a=bytes(LARGE_BYTES))
    lender.held_back.clear()
    begin_fetch(node, backup, 1)
    eventually(lambda: bool(lender.hellos))
    leaving = backup.end()
    lender.held_back.set()
    leaving.join(WAIT_S)
    eventually(lambda: not backup._parts.folder.exists() or not folders(backup))
    assert node.failures == []
    assert node.host_events.empty()
