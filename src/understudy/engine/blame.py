"""Why a query failed, and whose fault that is: the flow's, or that of the machine it ran on.

A flow that is wrong is wrong on every replica, so the run ends and says why. A machine whose disk is full or
whose Python worker was killed is one machine: it counts as dead, and the others go on. Spark raises the same
kind of exception for both, so this file looks at the exception's causes.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

import understudy
from understudy.engine.grouping import function_name

_RAISED = r"^(?:Caused by: |.*most recent failure: .*?: )?"
#: What Java keeps beside files and sockets, and a value of a row or a function of the flow may cause.
_ROWS = (
    r"net\.(?:URISyntax|MalformedURL)|nio\.charset\.|nio\.(?:BufferOverflow|BufferUnderflow|ReadOnlyBuffer)"
    r"|io\.(?:UnsupportedEncoding|UTFDataFormat|NotSerializable|InvalidClass|InvalidObject)"
)
#: Files, sockets, memory, native libraries. An EOFException is a Python worker that is gone.
_MACHINE = re.compile(
    _RAISED + rf"(?:java\.(?!{_ROWS})(?:io|net|nio)\.[\w.$]+"
    r"|java\.lang\.(?:OutOfMemory|Internal|UnsatisfiedLink)Error"
    r"|org\.apache\.hadoop\.fs\.[\w.$]+)\b",
    re.MULTILINE,
)
#: Classes that do not load, failed assertions, stacks that overflow: Java, Spark and the size of stacks are
#: the same on every node, whereas what fills a heap is not.
_EVERYWHERE = re.compile(_RAISED + r"java\.lang\.(\w*Error(?:: .+)?)", re.MULTILINE)
#: A line of a stack in one of Spark's functions, and not in the buffers that they share.
_FUNCTION = re.compile(
    r"^\tat org\.apache\.spark\.sql\.catalyst\.expressions\.(?:[a-z]+\.)*"
    r"(?!\w+(?:Buffer|State|Base)\b)([A-Z]\w+)",
    re.MULTILINE,
)
_SLOW_START = re.compile(
    _RAISED + r"java\.net\.SocketTimeoutException: .*worker to connect back", re.MULTILINE
)
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n)+)(?P<error>\S.*)", re.MULTILINE
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
#: Folders of installed packages, by their names: an environment may lie anywhere, also in a user's folder.
_INSTALLED = {"site-packages", "dist-packages"}
#: Python's standard library and Understudy itself. A path may lead to them through links.
_NOT_THE_USERS = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *understudy.__path__)
)
#: The rows of a group did not arrive at a Spark task.
_OWN_SOURCE = re.compile(r'File "[^"]*understudy[/\\]engine[/\\]source\.py"')
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+: .+)$", re.MULTILINE)

#: How Spark ends what it says of an analysed plan, before it prints the plan.
_PLAN_FOLLOWS = re.compile(r"SQLSTATE: \w{5};$")

#: Of a long message the beginning and the end are kept: where a function failed, and how.
LINES_FIRST, LINES_LAST = 4, 2


def machines_fault(problem: PySparkException) -> str | None:
    """What was wrong with the machine, if another one may well succeed with the same rows; or else None."""
    text = _text(problem)
    found = _MACHINE.search(text) or _OWN_SOURCE.search(text)
    if found is None:
        return None
    causes = _CAUSE.findall(text)
    return str(causes[-1]) if causes else found.group().strip()


def slow_start(problem: BaseException | None) -> bool:
    """Whether a query ended before its first micro-batch because Spark gave its Python too little time.

    The limit of 10 s is a constant of Spark's; on a busy machine every replica may reach it.
    """
    return isinstance(problem, PySparkException) and _SLOW_START.search(_text(problem)) is not None


def fails_everywhere(problem: PySparkException) -> str | None:
    """Which error of Java ended the query, where, and why, if it is none of the machine's; or else None."""
    text = _text(problem)
    found = _EVERYWHERE.search(text)
    if found is None:
        return None
    function = _FUNCTION.search(text, found.end())
    causes = [cause for cause in _CAUSE.findall(text, found.end()) if cause not in found.group()]
    where = f"{function_name(function.group(1))}: " if function else ""
    return f"{where}{found.group(1)}{f' ({causes[-1]})' if causes else ''}"


def _last_of(traceback: re.Match[str]) -> str:
    """A traceback in one line: the error, and where in the flow's own files it was raised, if it was.

    Of a traceback without a line of the user's, the last outside of installed packages is named.
    """
    error = " ".join(traceback["error"].split())
    frames = [
        frame
        for frame in _FRAME.finditer(traceback["frames"])
        if _INSTALLED.isdisjoint(Path(frame["file"]).parts)
    ]
    frames = [frame for frame in frames if _may_be_the_users(frame["file"])] or frames
    return f"{error} ({frames[-1]['file']}:{frames[-1]['line']})" if frames else error


def _may_be_the_users(file: str) -> bool:
    # Modules that Python holds in itself have no file.
    if file.startswith("<frozen "):
        return False
    resolved = Path(file).resolve()
    return not any(resolved.is_relative_to(folder) for folder in _NOT_THE_USERS)


def _text(problem: PySparkException) -> str:
    return (problem._stackTrace if isinstance(problem, CapturedException) else None) or str(problem)


def shortened(text: str) -> str:
    """Spark's own words without the stack that follows them, and without the middle of a long traceback."""
    kept: list[str] = []
    for line in _TRACEBACK.sub(_last_of, text.strip()).splitlines():
        if line.startswith(("\tat ", "=== Streaming Query", "JVM stacktrace", "Driver stacktrace")):
            break
        if line.startswith("~") and kept:
            # The root of a streaming query's plan.
            kept[-1] = kept[-1].removesuffix(";")
            break
        if _PLAN_FOLLOWS.search(line):
            kept.append(line.strip().removesuffix(";"))
            break
        if line.strip():
            kept.append(line.strip())
    if len(kept) > LINES_FIRST + LINES_LAST:
        kept = [*kept[:LINES_FIRST], "...", *kept[-LINES_LAST:]]
    return " ".join(kept)
