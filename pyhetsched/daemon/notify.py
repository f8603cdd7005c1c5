"""Telling systemd how the daemon is (sd_notify), where it asks to be told."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Sends states to ``$NOTIFY_SOCKET``; does nothing where there is none."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        env = dict(os.environ) if environment is None else environment
        self._path = env.get("NOTIFY_SOCKET", "")
        pid = env.get("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        self.watchdog_s = int(env.get("WATCHDOG_USEC", "0")) / 1e6 if mine else 0.0

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """The daemon is not stuck."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(text.encode(), address)
