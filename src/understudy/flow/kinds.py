"""Where a source's rows come from: the interface of every kind of source, Understudy's own and yours.

A **source kind** is data: it is built wherever the flow file is loaded, in every process of a run, and opens
nothing. Clients push the rows of a `Push` source. For every other kind the gateway opens a **reader**, which
fetches rows. `docs/extending.md` has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from understudy.flow.schema import parse_schema

if TYPE_CHECKING:
    from understudy.flow.model import Source


@dataclass(frozen=True, slots=True)
class Batch:
    """What one `Reader.read` gave.

    `rows` is anything that a client may push: a list of dicts, a dict of columns, a pandas frame or an Arrow
    table; None if there are none now. `position` is any JSON value that says where to go on behind these
    rows; it is kept with them, and not without (an empty list of rows will do). `again_us` is when to read
    next, by the wall clock in microseconds since 1970; a time that has passed means at once, where there were
    rows. `ended` closes the source after these rows.
    """

    rows: object | None = None
    position: Any = None
    again_us: int = 0
    ended: bool = False


class Reader(ABC):
    """Fetches the rows of one source.

    The gateway calls `read` and at the end `close`, in a thread that only this source has: no two calls
    overlap, and a reader that is slow holds up no other source. `read` is not called while the flow cannot
    take more rows of this source. An exception ends the gateway; when it is started again, it opens the
    source at its last position.

    Rows and position go into the gateway's log in one record. So a crash loses and repeats nothing, as long
    as reading from a position gives again what it gave before: rows that were read and not logged are read
    once more.
    """

    @abstractmethod
    def read(self, now_us: int) -> Batch:
        """The next rows, some thousands at most, at `now_us` by the wall clock.

        Do not wait for rows: return a `Batch` without rows that says when to ask again. While `read` works,
        the source does not count as silent. Raise `RowError` or `UserError` if the source cannot go on.
        """

    def finish(self) -> bool:
        """A client has closed the source: nothing is added any more to what it reads. Called once, between
        two reads, and again in another life of the gateway.

        False, as here, if the source ends with the next batch without rows; True if with one that says so.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most readers have nothing to close
        """The source has ended, or the gateway ends in order. Not called after a crash or a failure."""


class SourceKind(ABC):
    """A kind of source. Subclass it, best as a frozen dataclass, and check its parameters when it is built.

    `schema` is Spark DDL, such as "user string, ts timestamp".
    """

    schema: str

    @abstractmethod
    def open(self, source: Source, position: Any) -> Reader | None:
        """A reader that goes on at `position`; None if clients push the rows of this kind.

        `position` is what the last `Batch` in the log had, after its way through JSON (tuples become lists,
        keys texts); None at the start of a run. Called once in each life of the gateway. Leave the first
        contact with the outside to `read`.
        """

    def missing(self) -> str | None:
        """What a new run lacks to read from here, such as a file, in a sentence; None if nothing.

        Asked on the machine that starts the run, before anything is started.
        """
        return None

    def describe(self) -> str:
        """Where the rows come from, in a few words: `understudy explain` shows it."""
        return type(self).__name__


@dataclass(frozen=True)
class Push(SourceKind):
    """Rows that clients push to the gateway. They repeat a push until it is acknowledged."""

    schema: str

    def __post_init__(self) -> None:
        parse_schema(self.schema)

    def open(self, source: Source, position: Any) -> Reader | None:
        return None

    def describe(self) -> str:
        return "pushed by clients"
