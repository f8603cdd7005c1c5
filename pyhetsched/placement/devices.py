"""Which devices a gang gets: its old ones if they are free, else as few servers and switches as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyhetsched.placement.rounds import Gangs


@dataclass(frozen=True, slots=True)
class Server:
    """Devices of one GPU type in one node: ``devices`` are numbers unique within the type.

    ``switch`` names the leaf switch the node hangs on ("" if the site has not said).
    """

    name: str
    devices: tuple[int, ...]
    switch: str = ""


@dataclass(slots=True)
class _Free:
    servers: Sequence[Server]
    taken: set[int] = field(default_factory=set)

    def of(self, server: Server) -> list[int]:
        return [device for device in server.devices if device not in self.taken]


def servers_of(count: int, per_server: int, prefix: str = "", per_switch: int = 0) -> tuple[Server, ...]:
    """Return ``count`` devices in servers of ``per_server``, ``per_switch`` servers to a leaf switch."""
    starts = range(0, count, max(per_server, 1))
    return tuple(
        Server(
            f"{prefix}{number}",
            tuple(range(start, min(start + per_server, count))),
            f"{prefix}s{number // per_switch}" if per_switch else "",
        )
        for number, start in enumerate(starts)
    )


def assign_devices(
    gangs: Gangs,
    gang: Sequence[int],
    job_ids: Sequence[int],
    servers: Sequence[Sequence[Server]],
    previous: Mapping[int, tuple[int, tuple[int, ...]]],
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Return job id -> (type, devices) for the gangs of a round.

    Sizes in descending order; first those of that size whose old devices are all free keep them, then
    the others are packed (Gavel's order, OSDI'20 section 5). ``servers[j]`` are the servers of type j.
    """
    chosen: dict[int, tuple[int, tuple[int, ...]]] = {}
    free = [_Free(of_type) for of_type in servers]
    rows = list(zip(gangs.rows.tolist(), gangs.columns.tolist(), strict=True))
    for size in sorted({int(gang[row]) for row, _ in rows}, reverse=True):
        movers = []
        for row, column in rows:
            if gang[row] != size:
                continue
            old = previous.get(int(job_ids[row]))
            if old is not None and old[0] == column and free[column].taken.isdisjoint(old[1]):
                chosen[int(job_ids[row])] = old
                free[column].taken.update(old[1])
            else:
                movers.append((row, column))
        for row, column in movers:
            devices = consolidate(size, free[column])
            chosen[int(job_ids[row])] = (column, devices)
            free[column].taken.update(devices)
    return chosen


def consolidate(size: int, free: _Free) -> tuple[int, ...]:
    """Return ``size`` free devices on as few servers, then switches, as possible.

    A server that holds the whole gang and is left with least comes first; a gang that fits no server
    goes to the switch with most free devices, fullest servers first.
    """
    room = [(server, free.of(server)) for server in free.servers]
    fitting = [devices for _, devices in room if len(devices) >= size]
    if fitting:
        return tuple(min(fitting, key=len)[:size])
    by_switch: dict[str, int] = {}
    for server, devices in room:
        by_switch[server.switch] = by_switch.get(server.switch, 0) + len(devices)
    room.sort(key=lambda item: (-by_switch[item[0].switch], item[0].switch, -len(item[1])))
    picked: list[int] = []
    for _, devices in room:
        picked += devices[: size - len(picked)]
        if len(picked) == size:
            break
    return tuple(picked)


def kept(
    previous: Mapping[int, tuple[int, tuple[int, ...]]], current: Mapping[int, tuple[int, tuple[int, ...]]]
) -> int:
    """Return how many jobs of ``current`` hold the very devices they held before."""
    return sum(1 for job_id, place in current.items() if previous.get(job_id) == place)
