"""Print the requirements of a setup.py, one a line, without setuptools: what the root's venv must hold."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

# Of the extra "test", what checks types and style or solves reference problems runs on the host only.
HOST_ONLY = ("mypy", "ruff", "types-", "scipy-stubs", "cvxpy", "grpcio-tools")

# setup.py as found here may be run where setuptools is not installed (a bare Debian), so a module of
# that name which only listens takes its place.


def captured_arguments(setup_py: str) -> dict[str, Any]:
    """The keyword arguments that setup_py passes to setup()."""
    seen: dict[str, Any] = {}

    class Quiet:
        def __init__(self, *args: object, **kwargs: object) -> None:
            """Stands in for any class of setuptools."""

    fake = types.ModuleType("setuptools")
    fake.setup = lambda **kwargs: seen.update(kwargs)  # type: ignore[attr-defined]
    fake.find_packages = lambda *a, **k: []  # type: ignore[attr-defined]
    fake.find_namespace_packages = fake.find_packages  # type: ignore[attr-defined]
    for name in ("Extension", "Command", "Distribution"):
        setattr(fake, name, Quiet)
    sys.modules["setuptools"] = fake
    os.chdir(os.path.dirname(os.path.abspath(setup_py)))
    with open(setup_py, encoding="utf-8") as file:
        code = compile(file.read(), setup_py, "exec")
    exec(code, {"__file__": os.path.abspath(setup_py), "__name__": "__main__"})
    return seen


def main() -> None:
    """Print install_requires and of the extra 'test' what runs on the cluster."""
    arguments = captured_arguments(sys.argv[1])
    tests = arguments.get("extras_require", {}).get("test", [])
    wanted = [*arguments.get("install_requires", []), *(r for r in tests if not r.startswith(HOST_ONLY))]
    for requirement in sorted(set(wanted)):
        if not requirement.lower().startswith("pyslurm"):  # built by make_venv.sh, with its own flags
            print(requirement)


if __name__ == "__main__":
    main()
