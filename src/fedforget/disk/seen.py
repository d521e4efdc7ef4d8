"""Recognise a file that has not changed since this system last read or wrote it as a whole, without reading it.

The signature of a file is what the file system says about it: device, number, size, and the times of its last change
of content and of status. A program can set the first time, but not the second. A signature counts on one system and
until it restarts: after a restart, a copy or a restored backup the file is read and compared as a whole.

A list of signatures counts only if no other account can have written it (``is_only_ours``): every account of this
system can note the signature of a file that it made.
"""

from __future__ import annotations

import os
import stat
import time
from functools import cache
from pathlib import Path

from fedforget.disk.door import Door

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COARSE = 5  # Linux's CLOCK_REALTIME_COARSE: the clock that file times are taken from
_SECOND = 10**9
_MOST_TICKS = 100
_PAUSE = 0.001

Signature = tuple[int, ...]


@cache
def boot() -> str | None:
    """Return the id of this start of the system, or None where there is none: no signature counts there."""
    try:
        return _BOOT.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def is_only_ours(door: Door, name: str) -> bool:
    """Return whether no other account can have written a file: this one owns it, and alone may write it."""
    found = door.status(name)
    return found is not None and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def signature(door: Door, name: str) -> Signature | None:
    """Return the signature of a file. None if it says too little: a change within one tick of the clock would not show.

    Also None where the file system keeps whole seconds.
    """
    found = door.status(name)
    if boot() is None or found is None or found.st_ctime_ns % _SECOND == 0 or found.st_ctime_ns >= _tick():
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def settled_signature(door: Door, name: str) -> Signature | None:
    """Return the signature of a file that was just written, as soon as a later change would show in it."""
    found = door.status(name)
    for _ in range(_MOST_TICKS):
        if boot() is None or found is None or found.st_ctime_ns < _tick():
            break
        time.sleep(_PAUSE)
    return signature(door, name)


def _tick() -> int:
    try:
        return time.clock_gettime_ns(_COARSE)
    except (OSError, AttributeError):
        return 0
