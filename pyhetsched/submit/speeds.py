"""Peak figures of GPU models, for ``not-slower-than=`` and for ties: promises of data sheets, not measurements.

Dense FP16 throughput (tensor cores where the GPU has them, no sparsity) and memory bandwidth, from NVIDIA's
data sheets and architecture white papers of each product. They are upper bounds; what a job is worth on a
type is measured elsewhere and never read from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyhetsched.mig.profiles import GpuModel, Profile, models_of_type


@dataclass(frozen=True, slots=True)
class Speed:
    """``tflops`` dense FP16, ``gb_per_s`` of memory bandwidth."""

    tflops: float
    gb_per_s: float

    def at_least(self, other: Speed) -> bool:
        """Whether neither figure is below the other's."""
        return self.tflops >= other.tflops and self.gb_per_s >= other.gb_per_s


_PEAK = {
    "K80": Speed(4.4, 240),
    "P40": Speed(11.8, 346),
    "P100-PCIE-12GB": Speed(18.7, 549),
    "P100-16GB": Speed(18.7, 732),
    "V100-16GB": Speed(112, 900),
    "V100-32GB": Speed(112, 900),
    "T4": Speed(65, 320),
    "RTX-2080-Ti": Speed(107.6, 616),
    "QUADRO-RTX-6000": Speed(130.5, 672),
    "QUADRO-RTX-8000": Speed(130.5, 672),
    "RTX-3090": Speed(142, 936),
    "RTX-A4000": Speed(76.7, 448),
    "RTX-A5000": Speed(111.1, 768),
    "RTX-A6000": Speed(154.8, 768),
    "A2": Speed(18, 200),
    "A10": Speed(125, 600),
    "A16": Speed(17.9, 200),
    "A40": Speed(149.7, 696),
    "A30-24GB": Speed(165, 933),
    "A100-40GB": Speed(312, 1555),
    "A100-80GB": Speed(312, 1935),
    "L4": Speed(121, 300),
    "L40": Speed(181, 864),
    "L40S": Speed(362, 864),
    "RTX-4090": Speed(330.3, 1008),
    "RTX-6000-ADA": Speed(364.2, 960),
    "RTX-5090": Speed(419, 1792),
    "H100-80GB-SXM": Speed(989, 3350),
    "H100-80GB-PCIe": Speed(756, 2000),
    "H100-NVL-94GB": Speed(835, 3900),
    "GH200-96GB": Speed(989, 4000),
    "GH200-144GB": Speed(989, 4900),
    "H200-141GB": Speed(989, 4800),
    "B200-180GB": Speed(2250, 7700),
    "GB200-186GB": Speed(2500, 8000),
    "GB200-189GB": Speed(2500, 8000),
    "B300-269GB": Speed(2250, 8000),
    "GB300-278GB": Speed(2500, 8000),
    "RTX-PRO-6000-Blackwell": Speed(503.8, 1597),
}


def speed_of(model: GpuModel, profile: Profile | None = None) -> Speed | None:
    """The peak of a whole GPU, or of an instance: its part of the compute and of the memory slices."""
    whole = _PEAK.get(model.key)
    if whole is None or profile is None:
        return whole
    compute = profile.compute_slices / model.total_compute_slices
    return Speed(whole.tflops * compute, whole.gb_per_s * profile.size / model.total_memory_slices)


def speed_of_type(gres_type: str) -> Speed | None:
    """The slowest peak among the models that a type can mean; None where none is known."""
    speeds = [speed for model in models_of_type(gres_type) if (speed := speed_of(model)) is not None]
    return min(speeds, key=lambda speed: (speed.tflops, speed.gb_per_s)) if speeds else None
