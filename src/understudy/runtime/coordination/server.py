"""A ZooKeeper server of our own, for runs on one machine.

PySpark ships ZooKeeper among its jars, server included, and Java comes as a wheel, so nothing has to be
installed. On a cluster the user names an ensemble instead and this file is not used.

**It ends with its owner.** The owner may be killed with SIGKILL, so it cannot be trusted to clean up. A
parent-death signal would be tied to the *thread* that started the server, and a Python `preexec_fn` may
deadlock in a process with threads. So a small shell stands between: it starts Java, and a second shell reads
from a pipe whose only writer is the owner. However the owner ends, the pipe closes, the read returns, and
Java is killed. Java runs in a session of its own, so that Ctrl-C in a terminal reaches only the owner, which
still needs the server to wind down.

**It is small.** One heap of 64 MB, the serial collector, the first compiler tier only, one network thread, no
HTTP admin server, no JMX beans for the log. The tick is 100 ms, because ZooKeeper allows no session shorter
than two ticks, and the expiry of a session is how the silent death of a process is noticed.

The data folder outlives the server: started again with the same folder, it knows every node and every
session.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, cast

from understudy.engine.jvm import find_java, spark_jars
from understudy.flow.errors import EnvironmentFailed

HOST = "127.0.0.1"
TICK_MS = 100
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 2.0

#: What the server needs of the jars; the rest of PySpark's jars stay out of its class path.
JARS = (
    "zookeeper-3.*.jar",
    "zookeeper-jute-3.*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "audience-annotations-*.jar",
    "commons-io-*.jar",
)

JVM_OPTIONS = (
    "-Xmx64m",
    "-Xss256k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ActiveProcessorCount=1",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=1",
    # The transaction log grows by this many KB at a time; 64 MB of zeros at every start would be the default.
    "-Dzookeeper.preAllocSize=1024",
)

#: Prints Java's process id, ends with Java, and ends Java when its own standard input closes. It prints last:
#: an owner that is gone by then ends the shell, and the shell that watches must run already. The shell that
#: watches ends with Java too: what has Java's process id afterwards may be a stranger.
WRAPPER = """
exec 3<&0
"$@" </dev/null >&2 3<&- &
java=$!
{ read -r _ <&3; kill -9 $java; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
echo $java
exec >/dev/null
wait $java
status=$?
kill -9 $watch 2>/dev/null
exit $status
"""

LOGGING = """
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
"""


class ZooKeeperServer:
    """A server in `folder`, listening on loopback only. `start` returns when it answers.

    `port` None means a free one, chosen once: a restart uses the same.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port if port is not None else _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._java_pid: int | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id of the running Java, to kill or measure it."""
        return self._java_pid if self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether it answers now. Takes a second at most."""
        return _answers(self.port)

    def start(self) -> ZooKeeperServer:
        """Returns when it answers. While it runs this only waits for that."""
        self.begin()
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def begin(self) -> None:
        """Start it, and do not wait until it answers; a no-op while it runs."""
        if self.running:
            return
        # A former server that died leaves its pipes and the process id of its Java, which is out of date.
        self.kill()
        require_free_port("ZooKeeper", HOST, self.port)
        command = self._command()
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", WRAPPER, "zookeeper", *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as problem:
            raise EnvironmentFailed(f"ZooKeeper cannot be started: {problem}.") from problem
        self._process = process
        try:
            first = cast(IO[bytes], process.stdout).readline()
            if not first:
                raise EnvironmentFailed(  # noqa: TRY301
                    f"ZooKeeper's Java cannot be started. Its log says:\n{self._log_tail()}"
                )
            self._java_pid = int(first)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ends the server in an orderly way; what it wrote stays in the folder."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Starts again on the same port and data; a no-op while it runs."""
        self.start()

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        java, jars = find_java().executable, _jars()
        data, logging = self.folder / "data", self.folder / "log4j2.properties"
        settings = {
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "maxCnxns": 10_000,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        config = self.folder / "zoo.cfg"
        try:
            data.mkdir(parents=True, exist_ok=True)
            logging.write_text(LOGGING)
            config.write_text("".join(f"{key}={_escaped(str(value))}\n" for key, value in settings.items()))
        except OSError as error:
            raise EnvironmentFailed(
                f"ZooKeeper's folder {self.folder} cannot be written: {error}."
            ) from error
        return [
            str(java),
            *JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            ":".join(map(str, jars)),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(config),
        ]

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.running:
                raise EnvironmentFailed(f"ZooKeeper ended while starting. Its log says:\n{self._log_tail()}")
            if _answers(self.port):
                return
            # A process that is coming up offers no event to wait for, only a port that begins to answer.
            time.sleep(0.02)
        raise EnvironmentFailed(
            f"ZooKeeper did not answer on {self.address} within {READY_TIMEOUT_S:.0f} s. "
            f"Its log says:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-10:]) or f"(nothing; see {self.log})"

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        java_pid, self._java_pid = self._java_pid, None
        if process is None:
            return
        # Once the shell is known to have ended, the number of its group may be a stranger's.
        group_is_ours = process.returncode is None
        if process.poll() is None and java_pid is not None:
            # The shell waits for Java, so its own end says that the port is free again.
            for number in (with_signal, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(java_pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                    break
        if group_is_ours:
            # A shell that is stopped waits for nobody. The one that watches must not see the pipe close: it
            # would kill what has Java's process id by then.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        cast(IO[bytes], process.stdin).close()
        process.wait()
        cast(IO[bytes], process.stdout).close()


def _escaped(value: str) -> str:
    """A value as Java reads it from a file of properties: ASCII, all else by its UTF-16 code."""
    codes = memoryview(value.encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(chr(c) if 0x20 <= c < 0x7F and chr(c) != "\\" else f"\\u{c:04x}" for c in codes)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def require_free_port(who: str, host: str, port: int) -> None:
    """Raise `EnvironmentFailed` if the port is not free now. Port 0, any port, is always free."""
    with socket.socket() as probe:
        # Without this, connections of a server that was here a moment ago would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EnvironmentFailed(
                f"{who} cannot listen on {host}:{port}: {error.strerror}. "
                "End what uses that port, or choose another one."
            ) from error


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.makefile("rb").read()
    except OSError:
        return False


def _jars() -> list[Path]:
    shipped = spark_jars()
    found: list[Path] = []
    for pattern in JARS:
        matches = [jar for jar in shipped if fnmatch(jar.name, pattern)]
        if not matches:
            raise EnvironmentFailed(
                f"PySpark's jars in {shipped[0].parent} lack {pattern}; install pyspark again."
            )
        found += matches
    return found
