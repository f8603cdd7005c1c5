"""The one door to HiGHS for the planners of this room: small integer programs, given row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from pyhetsched.errors import SolverError


@dataclass(slots=True)
class IntegerProgram:
    """Minimise a linear cost over non-negative integer variables under two-sided linear rows."""

    costs: list[float] = field(default_factory=list)
    uppers: list[float] = field(default_factory=list)
    rows: list[tuple[float, float, Mapping[int, float]]] = field(default_factory=list)

    def variable(self, cost: float, upper: float) -> int:
        """Add an integer variable between 0 and ``upper``; returns its index."""
        self.costs.append(cost)
        self.uppers.append(upper)
        return len(self.costs) - 1

    def row(self, lower: float, upper: float, coefficients: Mapping[int, float]) -> None:
        """Add ``lower <= sum of coefficient * variable <= upper``."""
        self.rows.append((lower, upper, coefficients))

    def solve(self, time_limit_s: float = 60.0) -> tuple[list[int], bool]:
        """The best values found, and whether they are proven best.

        Raises :class:`SolverError` if there is no solution, or none was found in time.
        """
        solver = _silent_solver()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("time_limit", time_limit_s)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("parallel", "off")  # a thread count of our own clashes with other users of HiGHS
        solver.passModel(self._lp())
        solver.run()
        status = solver.getModelStatus()
        if solver.getInfo().primal_solution_status != 2:
            raise SolverError(f"the integer program has no answer: {solver.modelStatusToString(status)}")
        values = solver.getSolution().col_value
        return [round(v) for v in values], status == highspy.HighsModelStatus.kOptimal

    def _lp(self) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.rows)
        lp.col_cost_ = np.array(self.costs)
        lp.col_lower_ = np.zeros(len(self.costs))
        lp.col_upper_ = np.array(self.uppers)
        lp.row_lower_ = np.array([row[0] for row in self.rows])
        lp.row_upper_ = np.array([row[1] for row in self.rows])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.costs)
        starts, index, value = _row_wise(self.rows)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, index, value
        return lp


def _silent_solver() -> Any:
    """A solver that does not greet: it is silenced in the first call that its constructor makes."""
    base: Any = highspy.Highs

    class Silent(base):  # type: ignore[misc]
        def enableCallbacks(self) -> Any:  # noqa: N802
            self.setOptionValue("output_flag", False)
            return super().enableCallbacks()

    return Silent()


def _row_wise(
    rows: Sequence[tuple[float, float, Mapping[int, float]]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts = np.cumsum([0, *(len(row[2]) for row in rows)])
    index = [column for row in rows for column in row[2]]
    value = [coefficient for row in rows for coefficient in row[2].values()]
    return starts.astype(np.int32), np.array(index, dtype=np.int32), np.array(value, dtype=np.float64)
