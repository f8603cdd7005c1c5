"""Packaging of hetsched: the one place that names what the project depends on."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# grpcio and its companions are released in step and must be of one version; generated code
# (pyhetsched/rpc/gen) needs at least the protobuf that grpcio-tools carried when it was made.
RUNTIME = [
    "ClusterShell>=1.9.3",
    "SQLAlchemy>=2.0.30",
    "alembic>=1.13",
    "click>=8.1.7",
    "grpcio>=1.80",
    "grpcio-health-checking>=1.80",
    "grpcio-reflection>=1.80",
    "grpcio-status>=1.80",
    "highspy>=1.10",
    "numpy>=1.26",
    "nvidia-ml-py>=12.575",
    "prometheus_client>=0.20",
    "protobuf>=7.35",
    "pydantic>=2.7",
    "rich>=13.7",
    "scipy>=1.12",
    "structlog>=24.1",
]

# Only where a Slurm is installed: pyslurm is built against its headers (docs/install.md).
SLURM = ["pyslurm==25.11.2"]

TEST = [
    "cvxpy>=1.5",
    "grpcio-tools>=1.80",
    "hypothesis>=6.100",
    "mypy>=1.10",
    "mypy-protobuf>=3.6",
    "pytest>=8.2",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "ruff>=0.5",
    "types-grpcio>=1.0",
    "types-protobuf>=6.0",
    "scipy-stubs",
]

setup(
    name="pyhetsched",
    version="0.1.0",
    description="Heterogeneity-aware placement and dynamic MIG slices for Slurm",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="GPL-2.0-or-later",
    python_requires=">=3.11",
    packages=find_packages(include=["pyhetsched", "pyhetsched.*"]),
    package_data={"": ["*.md", "*.json", "*.csv", "*.csv.gz", "*.toml", "*.html", "*.mako", "*.ini", "py.typed"]},
    install_requires=RUNTIME,
    extras_require={"slurm": SLURM, "simulate": ["submitit>=1.5"], "test": TEST},
    entry_points={
        "console_scripts": [
            "hetsched = pyhetsched.cli.main:main",
            "hetschedd = pyhetsched.daemon.main:main",
            "hetsched-node = pyhetsched.node.main:main",
        ]
    },
)
