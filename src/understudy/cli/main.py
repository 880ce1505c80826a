"""The entry point of the `understudy` command.

A command's code is imported only when it is the one asked for: `understudy --help` needs neither Arrow nor
Spark. What a command raises decides how the command ends:

- `UserError`, `EnvironmentFailed`: one message on standard error, no stack trace, the error's exit code.
- Ctrl-C: 130, after the processes that it started have ended.
- Anything else is our bug and keeps its stack trace.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from understudy.cli.parser import parser
from understudy.flow.errors import EnvironmentFailed, UserError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Wrong arguments end in argparse's exit with code 2."""
    parsed = parser().parse_args(arguments)
    try:
        code = import_module(f"understudy.cli.{parsed.command}").execute(parsed)
        sys.stdout.flush()
    except (UserError, EnvironmentFailed) as problem:
        print(f"understudy {parsed.command}: {_without_trace(str(problem))}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
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
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    # Registered first, so it comes last.
    atexit.register(leave)
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        raise
    return code


def _without_trace(text: str) -> str:
    """What Java says, without where in Java it was said."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("at "))


if __name__ == "__main__":
    sys.exit(command())
