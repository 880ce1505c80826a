"""Failures that are no bug of Understudy's: the user's flow or rows are wrong, or the environment failed.

Commands print these without a stack trace and exit with the code beside them.
"""

from __future__ import annotations


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
