"""Linear programs handed to HiGHS as arrays, and started from the last basis where there is one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies.contract import Floats, Ints
from pyhetsched.policies.registry import Context

INF = highspy.kHighsInf


@dataclass(slots=True)
class LinearProgram:
    """min or max cost.x subject to rows and bounds, collected block by block.

    Entries are (row, column, value) triples; columns have bounds [0, upper] unless told otherwise.
    """

    maximise: bool = True
    cost: list[Floats] = field(default_factory=list)
    lower: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    row_lower: list[Floats] = field(default_factory=list)
    row_upper: list[Floats] = field(default_factory=list)
    integer: list[Ints] = field(default_factory=list)
    n_columns: int = 0
    n_rows: int = 0

    def columns(self, cost: Any, lower: float = 0.0, upper: float = INF, whole: bool = False) -> Ints:
        """Add columns with these costs and return their numbers; ``whole``: integer."""
        cost = np.atleast_1d(np.asarray(cost, dtype=np.float64))
        index = np.arange(self.n_columns, self.n_columns + len(cost))
        self.cost.append(cost)
        self.lower.append(np.full(len(cost), lower))
        self.upper.append(np.full(len(cost), upper))
        self.integer.append(np.full(len(cost), int(whole)))
        self.n_columns += len(cost)
        return index

    def rows(self, lower: Any, upper: Any) -> Ints:
        """Add rows with these limits (arrays or one broadcast number) and return their numbers."""
        low, up = np.broadcast_arrays(np.atleast_1d(lower), np.atleast_1d(upper))
        index = np.arange(self.n_rows, self.n_rows + len(low))
        self.row_lower.append(low.astype(np.float64))
        self.row_upper.append(up.astype(np.float64))
        self.n_rows += len(low)
        return index

    def put(self, row: Any, column: Any, value: Any) -> None:
        """Add entries; the three arguments are broadcast together. Entries that are 0 are left out."""
        r, c, v = np.broadcast_arrays(row, column, np.asarray(value, dtype=np.float64))
        keep = v.ravel() != 0
        self.entries.append((r.ravel()[keep], c.ravel()[keep], v.ravel()[keep]))

    def to_highs(self) -> Any:
        """Return the HighsLp with a row-wise matrix; entries for one place are summed."""
        from scipy.sparse import coo_matrix

        rows = np.concatenate([e[0] for e in self.entries])
        cols = np.concatenate([e[1] for e in self.entries])
        values = np.concatenate([e[2] for e in self.entries])
        matrix = coo_matrix((values, (rows, cols)), shape=(self.n_rows, self.n_columns)).tocsc()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.n_columns, self.n_rows
        lp.sense_ = highspy.ObjSense.kMaximize if self.maximise else highspy.ObjSense.kMinimize
        lp.col_cost_ = np.concatenate(self.cost)
        lp.col_lower_, lp.col_upper_ = np.concatenate(self.lower), np.concatenate(self.upper)
        lp.row_lower_, lp.row_upper_ = np.concatenate(self.row_lower), np.concatenate(self.row_upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
        lp.a_matrix_.value_ = matrix.data
        whole = np.concatenate(self.integer)
        if whole.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[flag] for flag in whole]
        return lp


@dataclass(frozen=True, slots=True, eq=False)
class LinearAnswer:
    """An optimum: ``x`` [columns], ``duals`` [rows], objective ``value``, ``iterations``, sizes."""

    x: Floats
    duals: Floats
    value: float
    iterations: int
    n_columns: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of columns and rows that stay the same from round to round, for a warm start."""

    key: str
    columns: Sequence[Hashable]
    rows: Sequence[Hashable]


@dataclass(slots=True)
class _KeptBasis:
    columns: dict[Hashable, Any]
    rows: dict[Hashable, Any]


def solve(
    program: LinearProgram,
    context: Context,
    labels: Labels | None = None,
    method: str = "choose",
    mip_gap: float = 1e-6,
) -> LinearAnswer:
    """Return the optimum; SolverError if there is none or the context's time runs out.

    With ``labels`` the basis is kept in the context's cache and the next program with the same key
    starts from it: columns and rows are matched by label, new ones start non-basic and basic.
    ``method`` "ipm" is HiGHS's interior point without crossover, which leaves no basis.
    """
    highs = _silent_highs()
    highs.setOptionValue("parallel", "off")
    highs.setOptionValue("solver", method)
    highs.setOptionValue("run_crossover", "off" if method == "ipm" else "on")
    highs.setOptionValue("mip_rel_gap", mip_gap)
    left_s = context.left_s()
    if np.isfinite(left_s):
        highs.setOptionValue("time_limit", left_s)
    highs.passModel(program.to_highs())
    if labels is not None:
        _start_warm(highs, labels, context)
    highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolverError(f"HiGHS: {highs.modelStatusToString(status)}")
    solution, info = highs.getSolution(), highs.getInfo()
    if labels is not None and method != "ipm":
        _keep_basis(highs, labels, context)
    return LinearAnswer(
        np.array(solution.col_value),
        np.array(solution.row_dual),
        float(info.objective_function_value),
        int(info.simplex_iteration_count),
        program.n_columns,
        program.n_rows,
    )


def _keep_basis(highs: Any, labels: Labels, context: Context) -> None:
    basis = highs.getBasis()
    context.cache.entries[labels.key] = _KeptBasis(
        dict(zip(labels.columns, basis.col_status, strict=True)),
        dict(zip(labels.rows, basis.row_status, strict=True)),
    )


def _silent_highs() -> Any:
    """Return a solver that prints nothing, not even the banner that the constructor writes to stdout."""
    base: Any = highspy.Highs

    class Silent(base):  # type: ignore[misc]
        def enableCallbacks(self) -> Any:  # noqa: N802  highspy's name; the first call of its constructor
            self.setOptionValue("output_flag", False)
            return super().enableCallbacks()

    return Silent()


def _start_warm(highs: Any, labels: Labels, context: Context) -> None:
    kept = context.cache.entries.get(labels.key)
    if not isinstance(kept, _KeptBasis):
        return
    status = highspy.HighsBasisStatus
    basis = highspy.HighsBasis()
    basis.col_status = [kept.columns.get(name, status.kLower) for name in labels.columns]
    basis.row_status = [kept.rows.get(name, status.kBasic) for name in labels.rows]
    basis.valid = True
    basis.alien = True  # HiGHS repairs a basis whose size no longer fits
    highs.setBasis(basis)
