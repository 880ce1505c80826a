"""Places on real file systems: a local folder, a server that speaks S3, and pyarrow on a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from saving_kit import moved_on_close

from understudy.runtime.saving.opening import open_place
from understudy.runtime.saving.places import Place


def moto_server() -> str | None:
    """The program of the S3 server: that of this environment, or of another one, which a variable names.

    Not any that is on the search path: some versions cannot complete an upload in parts.
    """
    beside = str(Path(sys.executable).parent)
    return os.environ.get("UNDERSTUDY_MOTO_SERVER") or shutil.which("moto_server", path=beside)


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server that has the bucket "bucket"."""
    program = moto_server()
    if program is None:
        pytest.skip("moto_server is not installed; UNDERSTUDY_MOTO_SERVER may name it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=sink, stderr=sink)
    try:
        _await_port(server, port, log)
        pafs.S3FileSystem(
            access_key="key",
            secret_key="word",
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            allow_bucket_creation=True,
        ).create_dir("bucket")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(10)


def _await_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends_at = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < ends_at:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the S3 server did not come up: {log.read_text()[-1000:]}")


@pytest.fixture
def s3_url(s3_endpoint: str) -> str:
    """A folder of its own for each test."""
    options = f"endpoint_override={s3_endpoint}&scheme=http&region=us-east-1"
    return f"s3://key:word@bucket/{uuid.uuid4().hex}/snap shots?{options}".replace(" ", "%20")


@pytest.fixture(params=["folder", "s3", "moved"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "folder":
            return open_place(str(tmp_path / "store"))
        case "s3":
            return open_place(request.getfixturevalue("s3_url"))
        case _:
            return moved_on_close(tmp_path / "store")
