"""Estimates: what they rest on, how far off they are, and that the error bars say so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyhetsched.errors import DataError
from pyhetsched.throughput.estimator import Estimator, EstimatorOptions, Ground, JobClass
from pyhetsched.throughput.tables import gavel_isolated

TYPES = ("v100", "p100", "k80")
RESNET = JobClass("ResNet-50 (batch size 32)", 1)


def test_nothing_is_assumed_with_a_wide_error_bar() -> None:
    estimates = Estimator(TYPES).estimate([RESNET])
    assert (estimates.ground == Ground.ASSUMED).all()
    assert (estimates.sigma == EstimatorOptions().assumed_sigma).all()
    assert (estimates.rates > 0).all()


def test_hint_sets_the_scale_of_a_blind_estimate_only() -> None:
    estimator = Estimator(TYPES)
    estimator.know(JobClass("other", 1), [4.0, 2.0, 1.0])
    estimator.know(RESNET, [10.0, 5.0, 2.5])
    estimates = estimator.estimate([JobClass("new", 1), RESNET, JobClass("newer", 1)], [20.0, 99.0, math.nan])
    np.testing.assert_allclose(estimates.rates[0], [40.0, 20.0, 10.0])
    assert estimates.rates[1, 0] == pytest.approx(10.0)
    np.testing.assert_allclose(estimates.rates[2], np.sqrt(10.0 * 4.0) * np.array([1.0, 0.5, 0.25]))


def test_known_rates_have_no_error_and_do_not_move() -> None:
    estimator = Estimator(TYPES)
    estimator.know(RESNET, [3.0, 2.0, 0.0])
    estimator.observe(RESNET, "v100", 7.0)
    estimates = estimator.estimate([RESNET])
    np.testing.assert_allclose(estimates.rates, [[3.0, 2.0, 0.0]])
    assert (estimates.ground == Ground.KNOWN).all()
    assert estimates.sigma.max() == 0


def test_measurements_are_averaged_with_gavels_weight() -> None:
    estimator = Estimator(TYPES)
    for rate in (8.0, 12.0):
        estimator.observe(RESNET, "p100", rate)
    estimates = estimator.estimate([RESNET])
    assert estimates.rates[0, 1] == pytest.approx(10.0)
    assert estimates.ground[0, 1] == Ground.MEASURED
    assert estimates.sigma[0, 1] > 0.2


def test_ratio_of_another_class_carries_over() -> None:
    estimator = Estimator(TYPES)
    estimator.know(JobClass("other", 1), [4.0, 2.0, 1.0])
    estimator.observe(RESNET, "v100", 100.0)
    estimates = estimator.estimate([RESNET])
    np.testing.assert_allclose(estimates.rates, [[100.0, 50.0, 25.0]])
    assert estimates.ground.tolist() == [[Ground.MEASURED, Ground.INFERRED, Ground.INFERRED]]
    assert estimates.sigma[0, 1] > estimates.sigma[0, 0]


def test_kin_count_more_than_strangers() -> None:
    estimator = Estimator(TYPES)
    estimator.know(JobClass("A3C", 1), [1.0, 1.0, 1.0])
    estimator.know(JobClass("ResNet-50 (batch size 64)", 1), [8.0, 4.0, 1.0])
    estimator.observe(RESNET, "v100", 8.0)
    rates = estimator.estimate([RESNET]).rates[0]
    assert rates[2] < 2.0


def test_type_on_which_it_cannot_run_stays_out() -> None:
    estimator = Estimator(TYPES)
    estimator.know(JobClass("other", 1), [4.0, 2.0, 1.0])
    estimator.observe(RESNET, "k80", 0.0)
    estimator.observe(RESNET, "v100", 4.0)
    assert estimator.estimate([RESNET]).rates[0].tolist() == pytest.approx([4.0, 2.0, 0.0])


def test_error_bars_are_honest_on_measured_data() -> None:
    """Two thirds of Gavel's cells shown, the others guessed: the errors are about as large as announced."""
    table, rng = gavel_isolated(TYPES), np.random.default_rng(0)
    estimator = Estimator(TYPES)
    classes = [JobClass(*c) for c in table.classes]
    for job_class, row in zip(classes, table.rates, strict=True):
        for j in np.flatnonzero(rng.random(3) < 0.67):
            estimator.observe(job_class, TYPES[j], float(row[j]))
    estimates = estimator.estimate(classes)
    guessed = (estimates.ground == Ground.INFERRED) & (table.rates > 0)
    error = np.abs(np.log(estimates.rates[guessed] / table.rates[guessed]))
    assert np.median(error) < 0.35
    assert 0.4 < math.sqrt(np.mean((error / estimates.sigma[guessed]) ** 2)) < 1.6


def test_table_makes_everything_known() -> None:
    table = gavel_isolated(TYPES)
    estimator = Estimator(("k80", "v100", "a100"))
    estimator.know_table(table)
    job_type, gang = table.classes[0]
    estimates = estimator.estimate([JobClass(job_type, gang)])
    assert estimates.rates[0, 0] == pytest.approx(table.rates[0, 2])
    assert estimates.rates[0, 1] == pytest.approx(table.rates[0, 0])
    assert estimates.ground[0].tolist() == [Ground.KNOWN, Ground.KNOWN, Ground.ASSUMED]


def test_cells_survive_a_restart() -> None:
    estimator = Estimator(TYPES)
    estimator.know(JobClass("other", 2), [4.0, 2.0, math.nan])
    estimator.observe(RESNET, "v100", 5.0)
    again = Estimator(("v100", "k80"))
    again.restore(estimator.cells())
    assert again.estimate([JobClass("other", 2)]).rates[0, 0] == pytest.approx(4.0)
    again.observe(JobClass("other", 2), "v100", 9.0)
    assert again.estimate([JobClass("other", 2)]).rates[0, 0] == pytest.approx(4.0)
    assert again.estimate([RESNET]).ground[0, 0] == Ground.MEASURED


@pytest.mark.parametrize(("gpu_type", "rate"), [("a100", 1.0), ("v100", -1.0), ("v100", math.nan), ("v100", math.inf)])
def test_wrong_observation_is_refused(gpu_type: str, rate: float) -> None:
    with pytest.raises(DataError):
        Estimator(TYPES).observe(RESNET, gpu_type, rate)


def test_wrong_number_of_rates_is_refused() -> None:
    with pytest.raises(DataError, match="2 rates for 3 GPU types"):
        Estimator(TYPES).know(RESNET, [1.0, 2.0])
