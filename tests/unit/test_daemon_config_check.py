"""What ``hetschedd --check-config`` says of a configuration that only this machine can judge."""

from __future__ import annotations

import re

import pytest

from pyhetsched.config import parse
from pyhetsched.daemon.main import check
from pyhetsched.errors import ConfigError


def test_all_that_is_wrong_is_said_with_its_key() -> None:
    config = parse(
        '[slurm]\nuser = "root"\n[access]\noperators = ["root", "no-such-1", "no-such-2"]\n'
        '[gpus.x9]\nmodel = "X9-1GB"\n'
    )
    with pytest.raises(ConfigError) as raised:
        check(config)
    first, second, third = str(raised.value).splitlines()
    assert first == "access.operators: there is no user 'no-such-1' on this machine"
    assert second == "access.operators: there is no user 'no-such-2' on this machine"
    assert third.startswith("gpus.x9.model: unknown 'X9-1GB'; known: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[pool]\nenabled = true\nnodes = "gpu[1-"', "pool.nodes"),
        ('[pool]\nenabled = true\nnodes = "gpu[1-99999999]"', "pool.nodes"),
        ('[policy]\nmode = "enforce"\nname = "nix"', "policy: no policy 'nix'"),
        ('[policy]\nmode = "shadow"\noptions = { foo = 1 }', "no option 'foo'"),
    ],
)
def test_what_would_only_fail_later_is_named_at_once(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(parse(f'[slurm]\nuser = "root"\n{text}\n'))


def test_pools_and_policies_that_are_right_pass() -> None:
    check(parse('[slurm]\nuser = "root"\n[pool]\nenabled = true\nnodes = "gpu[1-4]"\n[policy]\nmode = "shadow"\n'))
