"""The ahead-of-time cache: what a JVM learns about Spark's classes, kept on disk.

Starting a Spark session loads and links thousands of classes. Java 25 can store the outcome of one run and
give it to the next. The training run is a real one: a session, a stateless query and a stateful one through
this engine, so that their classes are in the cache. Set-up makes the cache once, and every JVM started
afterwards uses it; without it everything works and only starts slower.

A cache fits one Java and one set of jars, so its name holds both versions. It is written beside its final
place and renamed into it, because a JVM may start at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from understudy.engine.jvm import Java, find_java
from understudy.flow.errors import EnvironmentFailed

_JAVA_MIN = 25
_TRAINING_S_MAX = 900.0


def default_directory() -> Path:
    """Where caches live: inside the environment that the packages are installed in."""
    return Path(sys.prefix) / "share" / "understudy" / "aot"


def cache_path(java: Java, directory: Path | None = None) -> Path:
    return (directory or default_directory()) / f"java-{java.version()}-spark-{version('pyspark')}.aot"


def find_cache(java: Java, directory: Path | None = None) -> Path | None:
    """The cache that fits this Java and this Spark, if it was trained."""
    path = cache_path(java, directory)
    return path if path.is_file() else None


def train(
    directory: Path | None = None,
    *,
    java_home: str | Path | None = None,
    progress: Callable[[str], None] = print,
) -> Path | None:
    """Make the cache and return its path; None, with a word why, if this Java cannot have one.

    Takes minutes. An existing cache is returned as it is.
    """
    java = find_java(java_home)
    path = cache_path(java, directory)
    if path.is_file():
        progress(f"Java's start-up cache exists already: {path}")
        return path
    if not java.version().split(".")[0].isdigit() or int(java.version().split(".")[0]) < _JAVA_MIN:
        progress(f"Java {java.version()} has no start-up cache (that needs {_JAVA_MIN}); going on without")
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    progress("Training Java's start-up cache with a small Spark query (once, a few minutes)")
    with tempfile.TemporaryDirectory(prefix=".training-", dir=path.parent) as name:
        work = Path(name)
        log = work / "log"
        with log.open("wb") as sink:
            code = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "understudy.engine.aot_training",
                    str(work / "new.aot"),
                    str(java.home),
                ],
                stdout=sink,
                stderr=sink,
                timeout=_TRAINING_S_MAX,
                check=False,
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry)),
            ).returncode
        if code != 0 or not (work / "new.aot").is_file():
            tail = " ".join(log.read_text(encoding="utf-8", errors="replace").split()[-40:])
            raise EnvironmentFailed(
                f"training Java's start-up cache failed (exit code {code}): {tail}. All works without it"
            )
        (work / "new.aot").rename(path)
    progress(f"Start-up cache ready: {path.stat().st_size >> 20} MB at {path}")
    return path
