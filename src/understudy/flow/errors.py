"""Failures that are no bug of Understudy's: the user's flow or rows are wrong, or the environment failed.

Commands print these without a stack trace and exit with the code beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user wrote cannot work. The message says what, where and what to do."""

    exit_code = 2


class FlowError(UserError):
    """A flow that cannot run as written."""


class RowError(UserError):
    """Rows that do not fit their source's schema. No row of the push that carried them was taken."""


class ContractViolation(UserError):
    """A fragment broke the promise of its time column: a row came out for a bucket already sealed."""


class EnvironmentFailed(Exception):
    """Java, a port, a disk, ZooKeeper or another process is not what a run needs."""

    exit_code = 3


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """An exception of a user's source or sink, as one of these two, with a message that begins with `what`.

    An `OSError` is the environment's: a file, a database or the network may work again, and a gateway that is
    started again goes on from its last position. Anything else is a mistake in the code.
    """
    try:
        yield
    except (UserError, EnvironmentFailed):
        raise
    except Exception as problem:
        kind = EnvironmentFailed if isinstance(problem, OSError) else UserError
        raise kind(f"{what}: {type(problem).__name__}: {problem}.") from problem
