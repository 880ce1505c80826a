"""The entry point of the `understudy` command.

A command's code is imported only when it is the one asked for: `understudy --help` needs neither Arrow nor
Spark. What a command raises decides how the command ends:

- `UserError`, `EnvironmentFailed`: one message on standard error, no stack trace, the error's exit code.
- Ctrl-C: 130, after the processes that it started have ended.
- A reader that closes our output early: 0, in silence. Commands that others rely on go on without it
  (`cli.output`).
- Anything else is our bug and keeps its stack trace.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TextIO

from understudy.cli.parser import parser
from understudy.flow.errors import EnvironmentFailed, UserError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Wrong arguments end in argparse's exit with code 2."""
    parsed = parser().parse_args(arguments)
    try:
        code = import_module(f"understudy.cli.{parsed.command}").execute(parsed)
        _flush(sys.stdout)
    except (UserError, EnvironmentFailed) as problem:
        _complain(f"understudy {parsed.command}: {_without_trace(str(problem))}")
        return problem.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. Python would complain again when it closes the stream.
        sys.stderr.close()
        return 0
    return int(code)


def command() -> int:
    """What the console script calls. A thread that is still inside Flight, because a gateway does not answer,
    would abort the process when Python ends: so it ends hard, after all that is to be done at an end.
    """
    code = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                _flush(stream)
        os._exit(code)

    # Registered first, so it comes last.
    atexit.register(leave)
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        raise
    return code


def _flush(stream: TextIO | None) -> None:
    """There is none if it was closed before this process began."""
    if stream is not None:
        stream.flush()


def _complain(text: str) -> None:
    """Say it on standard error. Where that cannot be written, the exit code says it alone."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def _without_trace(text: str) -> str:
    """What Java says, without where in Java it was said."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("at "))


if __name__ == "__main__":
    sys.exit(command())
