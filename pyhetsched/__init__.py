"""hetsched: heterogeneity-aware placement and dynamic MIG slices for Slurm."""

__version__ = "0.1.0"
