"""A URL becomes a place.

The URL names the file system, the root below it, and in its query the options of the connection, as
`pyarrow.fs.FileSystem.from_uri` reads them. An S3 client is built here, not by `from_uri`, whose retries go
on for minutes. A URL that cannot mean anything is the user's mistake; a file system that does not answer is
the environment's. No message shows a key or a password: only scheme, host and path of a URL are repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.saving.bounded import Bounded
from understudy.runtime.saving.local import LocalPlace
from understudy.runtime.saving.places import Place, brief
from understudy.runtime.saving.remote import RemotePlace

FORMS = "a folder, file:///folder, s3://bucket/folder, gs://bucket/folder or hdfs://host:port/folder"
#: How long a file system may take to answer the first request.
OPENING_S = 10.0
_CONNECT_S = 3
#: Of one request that makes no progress. All attempts together stay below `RemotePlace.silence_s`; a process
#: cannot end before a client has given up.
_REQUEST_S = 5
_ATTEMPTS = 2
_ADVICE = {
    "hdfs": "Check its address. A client needs JAVA_HOME, HADOOP_HOME with libhdfs, and Hadoop's CLASSPATH.",
    "other": "Check its address, its bucket and its keys, and that this machine reaches it.",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


_S3_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "access_key": str,
    "secret_key": str,
    "session_token": str,
    "anonymous": _flag,
    "region": str,
    "scheme": str,
    "endpoint_override": str,
    "tls_ca_file_path": str,
    "force_virtual_addressing": _flag,
    "role_arn": str,
    "session_name": str,
    "external_id": str,
}


def open_place(url: str) -> Place:
    """The place that a URL names, once it has answered.

    Raises `UserError` for a URL that means nothing, and `EnvironmentFailed`, within `OPENING_S`, if the file
    system does not answer.
    """
    shown, make = _recognised(url)
    scheme = "hdfs" if shown.startswith(("hdfs://", "viewfs://")) else "other"
    bounded = Bounded(OPENING_S)

    def opened(_tick: object) -> Place:
        place = make()
        place.check()
        return place

    try:
        return bounded.one(opened)
    except NotADirectoryError as problem:
        raise UserError(f"Snapshots cannot be kept in {shown}: {problem}. Name a folder.") from problem
    except ValueError as problem:
        raise UserError(
            f"{shown} with the options after it is no place for snapshots: {brief(problem)}. "
            f"Name {FORMS}, with options that the file system knows."
        ) from problem
    except (OSError, pa.ArrowException) as problem:
        raise EnvironmentFailed(
            f"The store of snapshots {shown} does not answer: {brief(problem)}. {_ADVICE[scheme]}"
        ) from problem


def without_keys(url: str) -> str:
    """What of a URL names the place: its scheme, host and path. Raises `UserError` if it means nothing."""
    parts = _parts(url)
    return str(_folder(url)) if parts is None else _shown(parts)


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def _folder(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _parts(url: str) -> SplitResult | None:
    """What a URL consists of; None if it is a folder's name."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        if not url or re.match(r"(s3|gs|gcs|hdfs|viewfs|file):", url, re.IGNORECASE):
            raise UserError(f"{url!r} is no place for snapshots. Name {FORMS}.")
        return None
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it is read to be checked
    except ValueError:
        # What is wrong may be a piece of a key.
        raise UserError(
            f"A URL of {scheme[1]} is malformed: its host or port cannot be told. Name {FORMS}. Signs of "
            "keys that mean something in a URL are written like %2F for /."
        ) from None
    return parts


def _recognised(url: str) -> tuple[str, Callable[[], Place]]:
    """How the URL is shown, and what makes its place: that may take time, and fail."""
    parts = _parts(url)
    if parts is None:
        root = _folder(url)
        return str(root), lambda: LocalPlace(root)
    shown = _shown(parts)
    match parts.scheme:
        case "file":
            return shown, _local(parts, shown)
        case "s3":
            return shown, _s3(parts, shown)
        case "gs" | "gcs":
            _require_host(parts, "a bucket")
            # Without a limit of their own, requests are repeated for fifteen minutes.
            return shown, _by_pyarrow(
                parts, shown, {"retry_limit_seconds": str(_REQUEST_S)}, in_buckets=True, whole_on_close=True
            )
        case "hdfs" | "viewfs":
            _require_host(parts, "a host")
            return shown, _by_pyarrow(parts, shown, {}, in_buckets=False, whole_on_close=False)
        case _:
            raise UserError(f"Snapshots cannot be kept in {shown}: {parts.scheme} is unknown. Name {FORMS}.")


def _require_host(parts: SplitResult, what: str) -> None:
    if not parts.hostname:
        raise UserError(f"{parts.scheme}:// names no place for snapshots: {what} must follow. Name {FORMS}.")


def _local(parts: SplitResult, shown: str) -> Callable[[], Place]:
    if parts.netloc not in ("", "localhost") or parts.query or not parts.path:
        raise UserError(f"{shown} is no folder of this machine. Write it like file:///folder.")
    root = Path(unquote(parts.path))
    return lambda: LocalPlace(root)


def _s3(parts: SplitResult, shown: str) -> Callable[[], Place]:
    _require_host(parts, "a bucket")
    options: dict[str, Any] = {}
    for key, text in parse_qsl(parts.query, keep_blank_values=True):
        try:
            options[key] = _S3_OPTIONS[key](text)
        except KeyError:
            known = ", ".join(_S3_OPTIONS)
            raise UserError(f"{shown}: S3 has no option {key}. It has {known}.") from None
        except ValueError:
            raise UserError(f"{shown}: the option {key} is true or false, not {text!r}.") from None
    if parts.username:
        options["access_key"] = unquote(parts.username)
        options["secret_key"] = unquote(parts.password or "")
    if ("access_key" in options) != ("secret_key" in options):
        raise UserError(f"{shown}: access_key and secret_key go together. Name both or neither.")
    if options.get("scheme", "https") not in ("http", "https"):
        raise UserError(f"{shown}: the option scheme is http or https, not {options['scheme']!r}.")
    bucket = parts.netloc.rpartition("@")[2]
    root = bucket + unquote(parts.path)

    def make() -> Place:
        if "region" not in options and not os.environ.get("AWS_REGION"):
            # Otherwise the client asks the metadata service of a cloud that it may not be in.
            named = "endpoint_override" in options
            options["region"] = "us-east-1" if named else pafs.resolve_s3_region(bucket)
        files = pafs.S3FileSystem(
            **options,
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            # A write that returned has happened; a small object takes one request, not three.
            background_writes=False,
            allow_delayed_open=True,
        )
        return RemotePlace(files, root, shown, in_buckets=True, whole_on_close=True)

    return make


def _by_pyarrow(
    parts: SplitResult, shown: str, options: Mapping[str, str], *, in_buckets: bool, whole_on_close: bool
) -> Callable[[], Place]:
    query = urlencode({**options, **dict(parse_qsl(parts.query, keep_blank_values=True))})

    def make() -> Place:
        files, root = pafs.FileSystem.from_uri(urlunsplit(parts._replace(query=query)))
        return RemotePlace(files, root, shown, in_buckets=in_buckets, whole_on_close=whole_on_close)

    return make
