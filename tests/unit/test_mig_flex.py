"""One to many: several slices of one GPU need a declared collectives library."""

import pytest

from pyhetsched.mig.flex import CollectiveSupport

STOCK, SHARING = CollectiveSupport((2, 27), (12, 8)), CollectiveSupport((2, 31), (13, 0))


@pytest.mark.parametrize(
    ("support", "shares"),
    [
        (STOCK, False),
        (SHARING, True),
        (CollectiveSupport((2, 31), (12, 9)), False),
        (CollectiveSupport((2, 30), (13, 0)), False),
        (CollectiveSupport(), False),
        (CollectiveSupport(patched=True), True),
    ],
)
def test_sharing_a_gpu_needs_the_declared_versions(support: CollectiveSupport, shares: bool) -> None:
    assert support.shares_a_gpu is shares
