"""Which mode applies to a job: the narrowest scope that says something wins."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from pyhetsched.config import ModeConfig
from pyhetsched.errors import RequestError
from pyhetsched.model import Mode
from pyhetsched.store.reservations import ModeStore

SCOPES = ("user", "account", "partition")
UNSET = "unset"


@dataclass(frozen=True, slots=True)
class ModeTable:
    """All that says which mode applies to whom, as a value."""

    default: Mode
    scopes: Mapping[str, str]
    percent: int = 100
    disabled: bool = False

    def of(self, user: str, account: str, partition: str) -> Mode:
        """Return the mode for a job."""
        if self.disabled:
            return Mode.OFF
        keys = [f"user={user}", f"account={account}", *(f"partition={name}" for name in partition.split(","))]
        found = next((Mode(self.scopes[key]) for key in keys if key in self.scopes), self.default)
        chosen = zlib.crc32(user.encode()) % 100 < self.percent
        return found if chosen or found is not Mode.ENFORCE else Mode.SHADOW


class Modes:
    """Modes of the configuration file, and those set at run time, which win over it.

    ``percent`` lets a share of all users into enforce; the others stay in shadow. A user is always on the
    same side, so nobody sees a request treated both ways.
    """

    def __init__(self, store: ModeStore, config: ModeConfig) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._set = store.all()
        self.config = config

    def disabled(self) -> bool:
        """Whether the flag file that switches everything off is there."""
        return os.access(self.config.disabled_file, os.F_OK)

    def of(self, user: str, account: str, partition: str) -> Mode:
        """Return the mode for a job."""
        return self.table().of(user, account, partition)

    def settings(self) -> tuple[object, object]:
        """Return all that `of` depends on but the flag file; others objects once any of it has changed."""
        return self._set, self.config

    def table(self) -> ModeTable:
        """Return what applies now."""
        return ModeTable(self.default, self.scopes(), self.config.percent, self.disabled())

    def cluster(self) -> Mode:
        """Return the mode of what is not about one user's submit: reservations and nodes."""
        return Mode.OFF if self.disabled() else self.default

    @property
    def default(self) -> Mode:
        """The mode of the whole cluster."""
        return Mode(self._set.get("") or self.config.default)

    def scopes(self) -> dict[str, str]:
        """Return every narrower scope that has a mode, as ``kind=name``."""
        config = self.config
        tables = {"partition": config.partitions, "account": config.accounts, "user": config.users}
        found = {f"{kind}={name}": str(mode) for kind, table in tables.items() for name, mode in table.items()}
        return {**found, **{scope: mode for scope, mode in self._set.items() if scope}}

    def set(self, mode: str, kind: str = "", name: str = "") -> None:
        """Set the mode of the cluster or of one scope; ``unset`` takes back what was set, for the configuration's.

        Raises `RequestError` for an unknown mode or scope, `StoreError` when it cannot be kept.
        """
        valid = [*(item.value for item in Mode), UNSET]
        if mode not in valid:
            raise RequestError(f"unknown mode {mode!r}; write one of {', '.join(valid)}")
        if kind and (kind not in SCOPES or not name):
            raise RequestError(f"unknown scope {kind}={name}; write one of {', '.join(f'{s}=NAME' for s in SCOPES)}")
        scope = f"{kind}={name}" if kind else ""
        with self._lock:
            if mode != UNSET:
                self._store.save(scope, mode)
                self._set = {**self._set, scope: mode}
            elif scope in self._set:
                self._store.forget(scope)
                self._set = {key: value for key, value in self._set.items() if key != scope}
            else:
                where = f"{kind} {name}" if kind else "the whole cluster"
                raise RequestError(f"no mode was set for {where}; what hetsched.toml says holds there")
