"""Modes set while the daemon runs, over those of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyhetsched.config import parse
from pyhetsched.daemon.modes import Modes
from pyhetsched.errors import RequestError
from pyhetsched.model import Mode
from pyhetsched.store.database import Database
from pyhetsched.store.reservations import ModeStore

CONFIG = parse('[mode]\ndefault = "shadow"\nusers = { bob = "off" }\n').mode


def modes(folder: Path) -> Modes:
    return Modes(ModeStore(Database(f"sqlite:///{folder}/hetsched.db")), CONFIG)


def test_what_is_set_is_kept_and_can_be_taken_back(tmp_path: Path) -> None:
    running = modes(tmp_path)
    running.set("enforce")
    running.set("enforce", "user", "bob")
    assert modes(tmp_path).of("bob", "", "gpu") is Mode.ENFORCE
    running.set("unset", "user", "bob")
    assert (running.of("bob", "", "gpu"), running.of("alice", "", "gpu")) == (Mode.OFF, Mode.ENFORCE)
    running.set("unset")
    assert modes(tmp_path).default is Mode.SHADOW
    assert modes(tmp_path).scopes() == {"user=bob": "off"}


def test_only_what_was_set_can_be_taken_back(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no mode was set for user bob; what hetsched.toml says holds there"):
        modes(tmp_path).set("unset", "user", "bob")
    with pytest.raises(RequestError, match="write one of off, shadow, enforce, unset"):
        modes(tmp_path).set("on")
