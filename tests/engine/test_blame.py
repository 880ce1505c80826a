"""Which errors of Java are one machine's, and which every machine would have with the same flow."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from understudy.engine import blame
from understudy.engine.blame import fails_everywhere, machines_fault, shortened, slow_start

_FAILED = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0"
)


def failed(error: str, cause: str = "") -> PySparkException:
    """What Spark says of a task that ended with an error of Java's."""
    spark = "\tat org.apache.spark.sql.catalyst.expressions.aggregate"
    stack = f"{spark}.UpdatableSketchBuffer.of(a.scala:1)\n{spark}.HllSketchAgg$.update(a.scala:2)"
    caused = f"\nCaused by: {cause}\n\tat some.Class.method(b.java:2)" if cause else ""
    return PySparkException(
        f"{_FAILED} in stage 1.0 (TID 1) (host executor driver): {error}\n{stack}{caused}"
    )


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", ""),
        ("java.lang.InternalError: a fault occurred in an unsafe memory access operation", ""),
        ("java.lang.UnsatisfiedLinkError: no such library", ""),
        ("java.lang.ExceptionInInitializerError", "java.io.IOException: No space left on device"),
        ("org.apache.spark.SparkException: worse", "java.lang.OutOfMemoryError: Java heap space"),
    ],
)
def test_memory_files_and_native_libraries_are_the_machines(error: str, cause: str) -> None:
    wrong = machines_fault(failed(error, cause))
    assert wrong is not None
    assert (cause or error).rpartition(".")[2].split(":")[0] in wrong


@pytest.mark.parametrize(
    "error",
    [
        "ExceptionInInitializerError",
        "NoClassDefFoundError: Could not initialize class a.b.C",
        "NoSuchMethodError: a.b.C.d()",
        "UnsupportedClassVersionError: a/b/C",
        "IncompatibleClassChangeError",
        "AssertionError: assertion failed",
        "StackOverflowError",
    ],
)
def test_classes_that_do_not_load_failed_assertions_and_deep_stacks_are_the_flows(error: str) -> None:
    problem = failed(f"java.lang.{error}", "java.lang.IllegalArgumentException: Unsupported JDK")
    assert machines_fault(problem) is None
    assert fails_everywhere(problem) == f"hll_sketch_agg: {error} (IllegalArgumentException: Unsupported JDK)"


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.URISyntaxException: Illegal character in authority at index 7: http://a b/%zz^",
        "java.net.MalformedURLException: no protocol",
        "java.nio.charset.MalformedInputException: Input length = 1",
        "java.nio.charset.UnmappableCharacterException: Input length = 1",
        "java.nio.BufferUnderflowException",
        "java.io.UnsupportedEncodingException: none",
        "java.io.NotSerializableException: a.b.C",
    ],
)
def test_what_a_value_of_a_row_causes_is_the_flows_though_java_keeps_it_beside_files(cause: str) -> None:
    assert machines_fault(failed("org.apache.spark.SparkException: worse", cause)) is None


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.SocketException: Connection reset",
        "java.net.UnknownHostException: nowhere",
        "java.nio.file.NoSuchFileException: a/b",
        "java.nio.channels.ClosedChannelException",
        "java.io.EOFException",
    ],
)
def test_files_and_sockets_are_the_machines(cause: str) -> None:
    assert machines_fault(failed("org.apache.spark.SparkException: worse", cause)) is not None


def test_only_python_that_does_not_start_in_time_is_started_again() -> None:
    late = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"
    assert slow_start(failed("org.apache.spark.SparkException: worse", late))
    assert not slow_start(failed("java.net.SocketTimeoutException: Read timed out"))
    assert not slow_start(ValueError(late))
    assert not slow_start(None)


def test_an_error_whose_own_line_is_its_only_cause_is_said_once() -> None:
    problem = PySparkException("it ended\nCaused by: java.lang.AssertionError: assertion failed")
    assert fails_everywhere(problem) == "AssertionError: assertion failed"


def test_an_exception_is_no_error_of_java() -> None:
    problem = failed("java.lang.ArithmeticException: divided by zero")
    assert machines_fault(problem) is None
    assert fails_everywhere(problem) is None


RAISED = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/env/lib/python3/site-packages/pyspark/worker.py", line 100, in main
    process()
  File "/home/me/flow.py", line 8, in inverse
    return 100 // (v - 77)
           ~~~~^^~~~~~~~~~
  File "/env/lib/python3/site-packages/numpy/core.py", line 5, in divide
    raise error
ZeroDivisionError: integer division by zero
"""


def test_of_a_traceback_the_error_and_the_users_own_line_are_said() -> None:
    assert shortened(RAISED) == (
        "An exception was thrown from the Python worker: "
        "ZeroDivisionError: integer division by zero (/home/me/flow.py:8)"
    )


def raised_in(file: str) -> str:
    """The same traceback, if the error is raised further down, in this file."""
    error = "ZeroDivisionError"
    return RAISED.replace(error, f'  File "{file}", line 355, in raw_decode\n    raise error\n{error}')


@pytest.mark.parametrize(
    "file",
    [
        str(json.decoder.__file__),
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/home/me/.venv/lib/python3.11/site-packages/numpy/core.py",
        "<frozen importlib._bootstrap>",
        str(blame.__file__),
    ],
    ids=["Python's", "the system's", "an environment's", "Python's without a file", "Understudy's"],
)
def test_an_error_raised_in_a_library_is_said_of_the_users_line_that_called_it(file: str) -> None:
    assert shortened(raised_in(file)).endswith("by zero (/home/me/flow.py:8)")


def test_pythons_own_file_is_known_by_any_path_to_it(tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(sysconfig.get_path("stdlib"))
    assert shortened(raised_in(f"{tmp_path}/lib/json/decoder.py")).endswith("by zero (/home/me/flow.py:8)")


def test_a_users_file_beside_an_environment_is_the_users(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "lib").mkdir(parents=True)
    assert shortened(raised_in(f"{tmp_path}/rates.py")).endswith(f"by zero ({tmp_path}/rates.py:355)")


def test_of_a_traceback_without_a_line_of_the_users_the_last_outside_of_packages_is_said() -> None:
    own = "\n".join(
        text
        for text in raised_in(str(blame.__file__)).splitlines()
        if "flow.py" not in text and "77" not in text
    )
    assert shortened(own).endswith(f"by zero ({blame.__file__}:355)")


def test_of_a_traceback_without_a_line_of_the_users_the_error_is_said() -> None:
    own = "\n".join(line for line in RAISED.splitlines() if "flow.py" not in line and "77" not in line)
    assert shortened(own).endswith("worker: ZeroDivisionError: integer division by zero")


@pytest.mark.timeout(20)
def test_a_traceback_that_breaks_off_is_left_as_it_is_and_takes_no_time() -> None:
    half = "Traceback (most recent call last):\n" + '  File "flow.py", line 8\n' * 200
    assert shortened(half).startswith('Traceback (most recent call last): File "flow.py", line 8')
