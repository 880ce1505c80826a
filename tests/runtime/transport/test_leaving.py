"""Connections that are open when the process ends are closed, and waited for within bounds."""

from __future__ import annotations

import threading

import pytest

from understudy.runtime.transport.leaving import OpenConnections


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
