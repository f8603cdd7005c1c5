"""What every policy takes and gives: a cluster's state in, shares of GPU time out.

A policy sees the jobs that are in the system (running and pending) as columns of numbers, one row
per job, and the GPU types as columns of the throughput matrix. It never sees nodes: where a gang is
put is the business of placement. Notation follows Gavel (OSDI'20, section 4): ``T[m, j]`` rate of the
whole gang, ``X[m, j]`` share of time that job m should hold type j, ``g`` gang size, ``N`` devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyhetsched.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_TYPE = -1
NO_CLASS = -1
NO_DEADLINE = float("inf")


@dataclass(frozen=True, slots=True)
class GpuType:
    """One gres type (or MIG slice kind) and how many devices of it the cluster offers.

    ``count`` devices; ``usd_per_gpu_h`` price of one device for an hour; ``busy_w`` and ``idle_w``
    power draw of one device in watts.
    """

    name: str
    count: int
    usd_per_gpu_h: float = 0.0
    busy_w: float = 0.0
    idle_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job as policies see it.

    ``gang`` GPUs that start and stop together; ``steps_per_s`` rate of the WHOLE gang on each type
    (0: cannot run there); ``sigma`` relative error bar of each rate (0.1 = 10 %); ``age_s`` time since
    arrival; ``waited_s`` time since arrival in which nothing was received; ``isolated_used_s``
    Gavel's D_m, the time this progress would have taken on the job's isolated share; ``deadline_s``
    time left until the deadline (inf: none); ``account`` path from the root of Slurm's account tree;
    ``job_class`` row of the pair table (-1: never shares a GPU); ``min_gang``/``max_gang`` range of an
    elastic or moldable job (both equal to ``gang`` otherwise).
    """

    job_id: int
    gang: int
    steps_per_s: tuple[float, ...]
    remaining_steps: float
    total_steps: float = 0.0
    weight: float = 1.0
    age_s: float = 0.0
    waited_s: float = 0.0
    sigma: tuple[float, ...] = ()
    account: tuple[str, ...] = ()
    deadline_s: float = NO_DEADLINE
    isolated_used_s: float = 0.0
    job_class: int = NO_CLASS
    min_gang: int = 0
    max_gang: int = 0
    running_on: int = NO_TYPE


@dataclass(frozen=True, slots=True, eq=False)
class PairTable:
    """Rates of two jobs that share the same GPUs.

    ``rates[j, a, b]`` is the rate in steps/s of a job of class a while it shares its GPUs of type j
    with a job of class b; 0 in either direction: the two do not fit together. Jobs share only with
    jobs of the same gang size, so a class stands for a job type at one gang size.
    """

    classes: tuple[str, ...]
    rates: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """All that a policy may look at; build it with :meth:`from_jobs` or :meth:`from_arrays`.

    Shapes: M jobs, J types. ``throughput`` and ``sigma`` are [M, J], all other job columns [M].
    Rows are in order of arrival (oldest first). ``running_on`` is the type index a job holds now, -1
    if none. ``movable`` [M] is False for running jobs that nobody may move or preempt (None: all may be
    moved). Arrays must not be written to.
    """

    types: tuple[GpuType, ...]
    job_ids: Ints
    throughput: Floats
    gang: Ints
    weight: Floats
    remaining: Floats
    total: Floats
    age_s: Floats
    waited_s: Floats
    sigma: Floats
    deadline_s: Floats
    isolated_used_s: Floats
    job_class: Ints
    min_gang: Ints
    max_gang: Ints
    running_on: Ints
    accounts: tuple[tuple[str, ...], ...] = ()
    account_weights: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    pairs: PairTable | None = None
    now_s: float = 0.0
    movable: NDArray[np.bool_] | None = None
    counts: Floats = field(init=False)
    usable: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        n_types = len(self.types)
        if self.throughput.shape != (len(self.job_ids), n_types):
            raise DataError(
                f"throughput has shape {self.throughput.shape}; {len(self.job_ids)} jobs and "
                f"{n_types} GPU types need ({len(self.job_ids)}, {n_types})"
            )
        if self.gang.size and int(self.gang.min()) < 1:
            raise DataError("a job's gang must be at least 1 GPU")
        counts = np.array([t.count for t in self.types], dtype=np.float64)
        object.__setattr__(self, "counts", counts)
        usable = (self.throughput > 0) & (self.gang[:, None] <= counts[None, :])
        object.__setattr__(self, "usable", usable)

    @property
    def n_jobs(self) -> int:
        """Return M."""
        return len(self.job_ids)

    @property
    def n_types(self) -> int:
        """Return J."""
        return len(self.types)

    def type_index(self, name: str) -> int:
        """Return the column of the GPU type ``name``."""
        for index, gpu_type in enumerate(self.types):
            if gpu_type.name == name:
                return index
        known = ", ".join(t.name for t in self.types)
        raise DataError(f"no GPU type {name!r} here; the types are {known}")

    @classmethod
    def from_arrays(
        cls,
        types: Sequence[GpuType],
        throughput: Floats,
        gang: Ints | None = None,
        remaining: Floats | None = None,
        **columns: Any,
    ) -> ClusterState:
        """Build a state from columns; those left out get the default of :class:`Job`.

        ``columns`` may name any other field of the state. Lists are accepted for arrays.
        """
        rates = np.ascontiguousarray(throughput, dtype=np.float64)
        rates = rates.reshape(-1, len(types)) if rates.size == 0 else rates
        n_jobs = rates.shape[0]
        filled: dict[str, Any] = {
            "types": tuple(types),
            "throughput": rates,
            "gang": _column(gang, n_jobs, np.int64, 1),
            "remaining": _column(remaining, n_jobs, np.float64, 0.0),
            "job_ids": _column(columns.pop("job_ids", None), n_jobs, np.int64, None),
        }
        filled["total"] = _column(columns.pop("total", filled["remaining"]), n_jobs, np.float64, 0.0)
        for name in ("min_gang", "max_gang"):
            filled[name] = _column(columns.pop(name, filled["gang"]), n_jobs, np.int64, 1)
        for name, default in _FLOAT_COLUMNS.items():
            filled[name] = _column(columns.pop(name, None), n_jobs, np.float64, default)
        for name in ("job_class", "running_on"):
            filled[name] = _column(columns.pop(name, None), n_jobs, np.int64, -1)
        sigma = columns.pop("sigma", None)
        filled["sigma"] = np.zeros_like(rates) if sigma is None else np.asarray(sigma, dtype=np.float64)
        return cls(**filled, **columns)

    @classmethod
    def from_jobs(
        cls,
        types: Sequence[GpuType],
        jobs: Iterable[Job],
        pairs: PairTable | None = None,
        now_s: float = 0.0,
        account_weights: Mapping[tuple[str, ...], float] | None = None,
    ) -> ClusterState:
        """Build a state from job records, in order of arrival."""
        rows = list(jobs)
        no_sigma = (0.0,) * len(types)
        return cls.from_arrays(
            types,
            np.array([job.steps_per_s for job in rows], dtype=np.float64),
            np.array([job.gang for job in rows], dtype=np.int64),
            np.array([job.remaining_steps for job in rows], dtype=np.float64),
            job_ids=[job.job_id for job in rows],
            total=[job.total_steps or job.remaining_steps for job in rows],
            weight=[job.weight for job in rows],
            age_s=[job.age_s for job in rows],
            waited_s=[job.waited_s for job in rows],
            sigma=np.array([job.sigma or no_sigma for job in rows]).reshape(-1, len(types)),
            deadline_s=[job.deadline_s for job in rows],
            isolated_used_s=[job.isolated_used_s for job in rows],
            job_class=[job.job_class for job in rows],
            min_gang=[job.min_gang or job.gang for job in rows],
            max_gang=[job.max_gang or job.gang for job in rows],
            running_on=[job.running_on for job in rows],
            accounts=tuple(job.account for job in rows),
            account_weights=account_weights or {},
            pairs=pairs,
            now_s=now_s,
        )


_FLOAT_COLUMNS = {
    "weight": 1.0,
    "age_s": 0.0,
    "waited_s": 0.0,
    "deadline_s": NO_DEADLINE,
    "isolated_used_s": 0.0,
}


def _column(values: Any, n_jobs: int, dtype: type, default: Any) -> Any:
    if values is None:
        return np.arange(n_jobs, dtype=dtype) if default is None else np.full(n_jobs, default, dtype=dtype)
    column: NDArray[Any] = np.asarray(values, dtype=dtype)
    if column.shape != (n_jobs,):
        raise DataError(f"a job column has shape {column.shape}; {n_jobs} jobs need ({n_jobs},)")
    return column


def changed(state: ClusterState, **columns: Any) -> ClusterState:
    """Return the state with some of its fields replaced."""
    return replace(state, **columns)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """How an allocation came about.

    ``policy`` and ``rung`` name the step of the ladder that answered, ``reasons`` why each step before
    it did not (empty: the first one answered), ``solver`` the method, ``solve_ms`` wall time of
    the whole call, ``gap`` proven relative distance to the optimum (nan: no bound is computed),
    ``variables`` and ``rows`` size of the problem that was solved.
    """

    policy: str = ""
    rung: str = ""
    reasons: tuple[str, ...] = ()
    solver: str = ""
    solve_ms: float = 0.0
    gap: float = float("nan")
    variables: int = 0
    rows: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PairShares:
    """Time in which two jobs share the same GPUs: row k is jobs ``a[k]``, ``b[k]`` (row numbers of the
    state), ``shares[k, j]`` the share of time they hold type j together. Shapes [P], [P], [P, J]."""

    a: Ints
    b: Ints
    shares: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """What a policy wants.

    ``shares`` [M, J]: share of time each job should hold each type ALONE; ``pairs``: time shared with a
    partner, on top of that. ``order`` (policies that rank): row numbers, most urgent first, of the jobs
    that should run now; jobs not in it should not run. ``wanted`` [M]: type index a ranked job should
    run on, -1 if any or none. ``backfill``: devices that the order leaves idle may go to other jobs, or to
    a job on a faster type than wanted. ``objective``: the policy's own figure, as its documentation defines
    it. Policies that do not rank leave ``order`` and ``wanted`` None; then placement derives the order
    from shares and time received.
    """

    shares: Floats
    objective: float = float("nan")
    pairs: PairShares | None = None
    order: Ints | None = None
    wanted: Ints | None = None
    backfill: bool = False
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def time_shares(self) -> Floats:
        """Return [M, J]: share of time each job holds each type, alone or with a partner."""
        if self.pairs is None or not len(self.pairs.a):
            return self.shares
        total = self.shares.copy()
        np.add.at(total, self.pairs.a, self.pairs.shares)
        np.add.at(total, self.pairs.b, self.pairs.shares)
        return total

    def device_use(self, state: ClusterState) -> Floats:
        """Return [J]: mean number of devices of each type that the allocation occupies."""
        use: Floats = state.gang.astype(np.float64) @ self.shares
        if self.pairs is not None and len(self.pairs.a):
            use = use + state.gang[self.pairs.a].astype(np.float64) @ self.pairs.shares
        return use

    def steps_per_s(self, state: ClusterState) -> Floats:
        """Return [M]: effective throughput of each job, thr(m, X) = sum_j T[m, j] X[m, j], pairs included."""
        rates: Floats = np.einsum("mj,mj->m", state.throughput, self.shares)
        if self.pairs is None or not len(self.pairs.a) or state.pairs is None:
            return rates
        table = state.pairs.rates
        for me, other in ((self.pairs.a, self.pairs.b), (self.pairs.b, self.pairs.a)):
            together = table[:, state.job_class[me], state.job_class[other]].T
            np.add.at(rates, me, np.einsum("pj,pj->p", together, self.pairs.shares))
        return rates
