"""Connections that are open when the process ends are closed, and waited for within bounds."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from understudy.runtime.transport.leaving import OPEN, OpenConnections


class Connection:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self, reason: str) -> None:
        self.closed.set()


def test_who_leaves_waits_until_a_connection_has_ended() -> None:
    connections, connection = OpenConnections(), Connection()
    entered, may_go = threading.Event(), threading.Event()

    def run() -> None:
        with connections.entered(connection):
            entered.set()
            may_go.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait(10)
    assert not connections.leave(timeout_s=0.05)
    assert connection.closed.is_set()
    may_go.set()
    assert connections.leave(timeout_s=10)
    thread.join()


def test_who_leaves_opens_nothing_any_more() -> None:
    connections = OpenConnections()
    assert connections.leave(timeout_s=0)
    with pytest.raises(ConnectionError, match="ends"), connections.entered(Connection()):
        pass


def test_a_connection_that_failed_is_not_waited_for() -> None:
    connections = OpenConnections()
    with pytest.raises(ValueError), connections.entered(Connection()):
        raise ValueError
    assert connections.leave(timeout_s=0)


def test_a_connection_that_cannot_be_closed_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, trouble = OpenConnections(), [Connection(), Connection()]

    def refuse(connection: Connection, reason: str) -> None:
        connection.closed.set()
        raise OSError(reason)

    monkeypatch.setattr(Connection, "close", refuse)
    with connections.entered(trouble[0]), connections.entered(trouble[1]):
        assert not connections.leave(timeout_s=0)
    assert [each.closed.is_set() for each in trouble] == [True, True]


def test_a_forked_process_leaves_the_connections_of_its_parent_alone() -> None:
    connection, held, may_go = Connection(), threading.Event(), threading.Event()

    def hold() -> None:
        with OPEN._changed:
            held.set()
            may_go.wait(30)

    with OPEN.entered(connection):
        # Another thread holds the lock at the moment of the fork, and does not come along.
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(10)
            left = OPEN.leave(timeout_s=5)
            os._exit(0 if left and not connection.closed.is_set() else 1)
        _, status = os.waitpid(child, 0)
        may_go.set()
        holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_process_forked_from_a_forked_one_is_still_cut_off() -> None:
    with OPEN.entered(Connection()):
        child = os.fork()
        if not child:
            signal.alarm(10)
            grandchild = os.fork()
            if not grandchild:
                os._exit(0 if OPEN.cut_by_fork else 1)
            _, status = os.waitpid(grandchild, 0)
            os._exit(os.waitstatus_to_exitcode(status))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not OPEN.cut_by_fork
