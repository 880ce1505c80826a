"""A link: a connection that this process makes, and makes again whenever it breaks.

Its peer, such as the gateway, may be killed and started again at any time. A link retries until it is ended,
and asks its owner for a new hello each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from understudy.core.errors import Fenced
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

RETRY_S = 0.1
RETRY_REFUSED_S = 1.0


class LinkOwner(Protocol):
    """The owner of a link. All calls come from the link's thread."""

    def link_hello(self, end: str) -> Mapping[str, Any]: ...

    def link_up(self, end: str, channel: Channel, serial: int) -> None: ...

    def link_frame(self, end: str, channel: Channel, serial: int, frame: Frame) -> None: ...

    def link_down(self, end: str, channel: Channel | None, serial: int, why: str) -> None: ...

    def link_fenced(self, end: str, why: str) -> None: ...


class Link:
    """Keeps one connection alive until `end`. `end_name` is what its owner calls the other side.

    `attempts` numbers the attempts of its owner. By this number the other side tells a late hello of an
    attempt that was given up from the newest one, so it must go on rising when a link is dropped and made
    anew.
    """

    def __init__(
        self,
        end_name: str,
        owner: LinkOwner,
        address: Callable[[], str | None],
        *,
        epoch: int,
        beat_s: float,
        silence_s: float,
        purpose: str | None = None,
        attempts: Iterator[int],
    ) -> None:
        self._end_name = end_name
        self._purpose = purpose or end_name
        self._owner = owner
        self._address = address
        self._epoch = epoch
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._over = threading.Event()
        self._channel: Channel | None = None
        self._attempts = attempts
        self._thread = threading.Thread(target=self._run, name=f"link {end_name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        channel = self._channel
        if channel is not None:
            channel.close("this replica is going away")

    def _run(self) -> None:
        while not self._over.is_set():
            address = self._address()
            if address is None:
                self._over.wait(RETRY_S)
                continue
            try:
                self._connect(address)
                self._over.wait(RETRY_S)
            except ConnectionError:
                self._over.wait(RETRY_S)
            except Refused as why:
                log.warning("the %s link was refused: %s", self._end_name, why)
                self._over.wait(RETRY_REFUSED_S)
            except Fenced as why:
                self._owner.link_fenced(self._end_name, str(why))
                return
            except Exception:
                log.exception("the %s link failed; trying again", self._end_name)
                self._over.wait(RETRY_REFUSED_S)

    def _connect(self, address: str) -> None:
        box: list[Channel] = []
        serial = next(self._attempts)

        def opened(channel: Channel) -> None:
            box.append(channel)
            self._channel = channel
            self._owner.link_up(self._end_name, channel, serial)
            if self._over.is_set():
                channel.close("this replica is going away")

        connect(
            address,
            self._purpose,
            {**self._owner.link_hello(self._end_name), "serial": serial},
            on_open=opened,
            on_frame=lambda frame: self._owner.link_frame(self._end_name, box[0], serial, frame),
            on_closed=lambda why: self._owner.link_down(self._end_name, box[0] if box else None, serial, why),
            epoch=self._epoch,
            beat_s=self._beat_s,
            silence_s=self._silence_s,
        )
