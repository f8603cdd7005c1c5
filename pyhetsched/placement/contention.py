"""How much multi-node jobs get in each other's way on the network; our own score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhetsched.placement.devices import Server


def spread(devices: Sequence[int], servers: Sequence[Server]) -> tuple[int, int]:
    """Return (servers, switches) that hold devices of a gang."""
    held = set(devices)
    used = [server for server in servers if not held.isdisjoint(server.devices)]
    return len(used), len({server.switch for server in used})


def contention(
    placed: Mapping[int, Sequence[int]], servers: Sequence[Server], traffic: Mapping[int, float] | None = None
) -> dict[int, float]:
    """Return for each job the load that others put on the links it uses, 0 if it stays in one server.

    A job on several servers loads the uplink of each of them with its ``traffic`` (default 1) times the part of its
    gang behind that link; one on several switches loads the switches' uplinks in the same way. The score is
    the largest load of other jobs on any link the job uses.
    """
    loads: dict[str, dict[int, float]] = {}
    for job, devices in placed.items():
        weight = (traffic or {}).get(job, 1.0)
        for link, part in _links(devices, servers).items():
            loads.setdefault(link, {})[job] = weight * part
    return {
        job: max(
            (sum(load for other, load in on_link.items() if other != job)
             for on_link in loads.values() if job in on_link),
            default=0.0,
        )
        for job in placed
    }  # fmt: skip


def _links(devices: Sequence[int], servers: Sequence[Server]) -> dict[str, float]:
    held = set(devices)
    parts = {server: len(held.intersection(server.devices)) / len(held) for server in servers}
    used = {server: part for server, part in parts.items() if part}
    if len(used) < 2:
        return {}
    links = {f"server {server.name}": part for server, part in used.items()}
    switches: dict[str, float] = {}
    for server, part in used.items():
        switches[server.switch] = switches.get(server.switch, 0.0) + part
    if len(switches) > 1:
        links.update({f"switch {name}": part for name, part in switches.items()})
    return links


def least_contended(
    candidates: Sequence[Sequence[int]], placed: Mapping[int, Sequence[int]], servers: Sequence[Server]
) -> int:
    """Return the index of the candidate device set that hurts least: own score, then servers used, then the first."""
    newcomer = -1

    def hurt(index: int) -> tuple[float, int]:
        score = contention({**placed, newcomer: candidates[index]}, servers)
        return sum(score.values()), spread(candidates[index], servers)[0]

    return min(range(len(candidates)), key=lambda index: (*hurt(index), index))
