"""Where a sink's rows go: the interface that every kind of sink implements, Understudy's own and yours.

A **sink kind** is data: it is built wherever the flow file is loaded, in every process of a run, and opens
nothing. The gateway alone opens a **writer** for it. `docs/extending.md` has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa


class Writer(ABC):
    """Takes the rows of one sink, bucket after bucket, in order.

    Bucket numbers rise; a number is a time divided by the flow's bucket width. The gateway calls `recover`
    once, in its main thread, before anything else. Then it calls `deliver` and at the end `close`, in a
    thread that only this sink has: no two calls overlap, and a writer that is slow holds up no other sink. An
    exception ends the gateway; when it is started again, it delivers from the last position on.

    The position is the bucket through which every row is delivered. The gateway keeps it in a journal of its
    own, which it writes after `deliver` has returned. A crash in between makes it repeat those rows: **at
    least once**, if the writer keeps no position. A writer that makes rows and `through` durable in one step,
    such as one rename or one transaction, and tells of it in `recover`, gets every row **exactly once**.
    """

    def recover(self) -> int | None:
        """Clean up after a crash, and say where to go on.

        Returns the `through` of the last range that is delivered for certain; None if there is none, or if
        this writer cannot tell. Rows up to there are never delivered again. In a new run an answer other than
        None means that the output is another run's: the gateway refuses to start. Raise `EnvironmentFailed`
        if the place cannot be used, so that this is known before the first row.
        """
        return None

    @abstractmethod
    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        """Deliver the rows of the buckets `first` to `through`: at least one row, in order.

        When it returns, the rows must survive a crash: the replicas forget them. Each call begins after the
        `through` of the last one. After a crash rows that are not behind the position come again, perhaps cut
        into ranges in another way. It may take its time; output then waits in the replicas, up to their
        limits.
        """

    def close(self) -> None:  # noqa: B027 - most writers have nothing to close
        """The run ends in order. Not called after a crash or a failure.

        It may take 30 s when the work is done, and 5 s when the run was asked to end; then the process goes.
        """


class SinkKind(ABC):
    """A kind of sink. Subclass it, best as a frozen dataclass, and check its parameters when it is built."""

    @abstractmethod
    def open(self, sink: str, folder: Path) -> Writer:
        """A writer for the sink of this name. One kind may be opened for several sinks.

        Called once in each life of the gateway, before `recover`; leave the first contact with the outside to
        that. `folder` is the run's own: a writer may keep files there, under the sink's name.
        """

    def describe(self) -> str:
        """Where the rows go, in a few words: `understudy explain` shows it."""
        return type(self).__name__

    def folders(self) -> Sequence[Path]:
        """The folders that one sink must have for itself. A flow in which two sinks share one is refused."""
        return ()

    def earlier_output(self) -> str | None:
        """Where an earlier run's output would mix with a new run's, such as a folder; None if nowhere."""
        return None
