"""One daemon on one hook socket: a second one would take the socket and write into the same journal."""

from __future__ import annotations

import fcntl
import os

from pyhetsched.errors import ConfigError


def stay_alone(hook_socket: str) -> int:
    """Take the lock beside ``hook_socket`` for as long as this process lives; return its descriptor.

    Raises `ConfigError` where another daemon has it, or the folder cannot be written.
    """
    path = f"{hook_socket}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}; its folder must be this user's") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigError(f"another hetschedd serves {hook_socket}; stop that one first") from error
    return lock
