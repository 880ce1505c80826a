"""Where a run is begun, so that neither a copy of its folder nor another machine passes for that place.

A path and a host's name are no proof: cloned machines and containers share them. Three things tell more.

    lock      which file of which device the folder's lock is on. A copy has a file of its own.
    boot      which start of which kernel. On one kernel, in containers too, one process holds a lock: whoever
              has the lock now knows that all who had it before are gone.
    machine   its number and the addresses of its network cards. What ran on it before its last boot is gone.
              A machine that was cloned has the number and the disk of the other, but cards of its own.

A place is the same if path, host's name and lock are, and beyond that the boot or the machine. So after a
loss of power it is the same still. What cannot be told counts as different.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from understudy.runtime.folder_lock import FILE
from understudy.runtime.saving.places import digest_of

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = Path("/etc/machine-id")
_CARDS = Path("/sys/class/net")


@dataclass(frozen=True)
class Whereabouts:
    """What is empty could not be told."""

    where: str
    """For people."""
    lock: str = ""
    boot: str = ""
    machine: str = ""

    @classmethod
    def of(cls, folder: Path) -> Whereabouts:
        """Those of this process, which holds the folder's lock."""
        return cls(f"{folder} on {socket.gethostname()}", _lock(folder), _text(_BOOT), _machine())

    def are_surely(self, other: Whereabouts) -> bool:
        """Whether this is the same place, so that the lock on its folder says who works there."""
        same_boot = self.boot != "" and self.boot == other.boot
        same_machine = self.machine != "" and self.machine == other.machine
        same_lock = self.lock != "" and (self.where, self.lock) == (other.where, other.lock)
        return same_lock and (same_boot or same_machine)


def _lock(folder: Path) -> str:
    try:
        facts = (folder / FILE).stat()
    except OSError:
        return ""
    return f"{facts.st_dev}:{facts.st_ino}"


def _machine() -> str:
    number, cards = _text(_MACHINE), _cards()
    # It is not to be shown to others, and the store may be theirs.
    return digest_of([" ".join([number, *cards]).encode()]) if number and cards else ""


def _cards() -> list[str]:
    """The addresses of real cards, and of those that a virtual machine is given."""
    return sorted(filter(None, (_text(device.parent / "address") for device in _CARDS.glob("*/device"))))


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
