"""A URL that means nothing is the user's mistake; a file system that is silent fails in bounded time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow.fs as pafs
import pytest
from saving_kit import RUN, P, no_tick

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.saving import opening
from understudy.runtime.saving.opening import FORMS, open_place
from understudy.runtime.saving.remote import RemotePlace
from understudy.runtime.saving.store import SnapshotStore

KEYS = "s3://my-key:my-secret@bucket/folder"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/folder",
        "s3:/bucket/folder",
        "s3://",
        "gs://",
        "hdfs://",
        "s3://[bucket/folder",
        "file:x",
    ],
)
def test_a_wrong_url_names_the_known_forms(url: str) -> None:
    with pytest.raises(UserError) as failed:
        SnapshotStore.open(url, RUN)
    assert FORMS in str(failed.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file://host/folder", "file://host/folder is no folder of this machine"),
        (f"{KEYS}?regio=x", "S3 has no option regio"),
        (f"{KEYS}?anonymous=perhaps", "the option anonymous is true or false, not 'perhaps'"),
        (f"{KEYS}?scheme=ftp", "the option scheme is http or https, not 'ftp'"),
        ("s3://bucket/folder?access_key=my-key", "access_key and secret_key go together"),
        ("s3://my-key:my-secret/of-mine@bucket/folder", "written like %2F for /"),
    ],
)
def test_a_wrong_option_is_named(url: str, said: str) -> None:
    with pytest.raises(UserError) as failed:
        SnapshotStore.open(url, RUN)
    assert said in str(failed.value)
    assert "my-" not in str(failed.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"is a file, not a folder\. Name a folder\."):
        SnapshotStore.open(str(tmp_path / "file"), RUN)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_folder_has_two_forms(tmp_path: Path, form: str) -> None:
    store = SnapshotStore.open(form.format(tmp_path / "of mine").replace("of mine", "of%20mine"), RUN)
    store.probe()
    assert (tmp_path / ("of mine" if form.startswith("file") else "of%20mine") / RUN).is_dir()


def test_a_relative_path_is_one_of_the_folder_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SnapshotStore.open("store", RUN)
    monkeypatch.chdir("/")
    store.probe()
    assert (tmp_path / "store").is_dir()


def test_opening_writes_nothing(tmp_path: Path) -> None:
    """A command that only looks opens it, too."""
    store = SnapshotStore.open(str(tmp_path / "store"), RUN)
    assert store.partitions() == []
    assert store.listed(P) == []
    assert not (tmp_path / "store").exists()


def test_keys_are_not_shown(s3_url: str) -> None:
    store = SnapshotStore.open(s3_url, RUN)
    assert store.url.startswith("s3://bucket/")
    assert "key" not in store.url


def test_keys_may_be_in_the_query(s3_url: str) -> None:
    SnapshotStore.open(s3_url.replace("key:word@", "") + "&access_key=key&secret_key=word", RUN).probe()


def test_a_large_object_goes_to_s3_and_comes_back(s3_url: str, tmp_path: Path) -> None:
    """It takes an upload in several parts."""
    place = open_place(s3_url)
    (tmp_path / "large").write_bytes(os.urandom(2**20) * 25)
    place.upload("large", tmp_path / "large", no_tick)
    place.download("large", tmp_path / "back", no_tick)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()


def test_a_wrong_bucket_is_not_taken_for_an_empty_store(s3_url: str) -> None:
    with pytest.raises(EnvironmentFailed, match="there is no bucket bucked"):
        SnapshotStore.open(s3_url.replace("@bucket/", "@bucked/"), RUN)


# --- no answer -------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> str:
    """An address where no server is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def options(endpoint: str) -> str:
    return f"endpoint_override={endpoint}&scheme=http"


@pytest.mark.parametrize("scheme", ["s3://my-key:my-secret@", "gs://anonymous@"])
def test_an_endpoint_that_refuses_fails_soon(
    refusing: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENING_S", 3.0)
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match="does not answer") as failed:
        SnapshotStore.open(f"{scheme}bucket/folder?{options(refusing)}", RUN)
    assert time.monotonic() - began < opening.OPENING_S + 2
    assert "bucket/folder" in str(failed.value)
    assert "my-" not in str(failed.value)


@pytest.mark.parametrize("scheme", ["s3://my-key:my-secret@", "gs://anonymous@"])
def test_an_endpoint_that_says_nothing_fails_in_bounded_time(
    silent: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENING_S", 1.0)
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match="there was no answer for 1 s"):
        SnapshotStore.open(f"{scheme}bucket/folder?{options(silent)}", RUN)
    assert time.monotonic() - began < 5


def test_a_process_ends_while_a_request_hangs(silent: str) -> None:
    script = f"""
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import opening
opening.OPENING_S = 1.0
try:
    opening.open_place("{KEYS}?{options(silent)}")
except EnvironmentFailed as problem:
    print(problem)
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "there was no answer for 1 s" in done.stdout
    assert time.monotonic() - began < 45


def test_hdfs_without_its_library_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(EnvironmentFailed) as failed:
        SnapshotStore.open("hdfs://me@name-node:9000/folder", RUN)
    said = str(failed.value)
    assert said.startswith(
        "The store of snapshots hdfs://name-node:9000/folder does not answer: Unable to load"
    )
    assert "HADOOP_HOME" in said
    assert "\n" not in said


class RefusingToOverwrite:
    """A file system that refuses to move a file onto another one, as HDFS does."""

    def __init__(self) -> None:
        self._files = pafs._MockFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def move(self, source: str, target: str) -> None:
        if self._files.get_file_info(target).type == pafs.FileType.File:
            raise OSError("rename returned false")
        self._files.move(source, target)


def test_a_file_takes_the_place_of_another_where_a_move_does_not() -> None:
    place = RemotePlace(
        cast(pafs.FileSystem, RefusingToOverwrite()),
        "root",
        "hdfs://x/root",
        in_buckets=False,
        whole_on_close=False,
    )
    place.make_folder("a")
    place.write("a/one", [b"1"], no_tick)
    place.write("a/one", [b"2"], no_tick)
    assert place.read("a/one", no_tick) == b"2"
    assert [each.name for each in place.files("a")] == ["one"]
