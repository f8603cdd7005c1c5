"""The rooms import downwards only, and the outside world has one door each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pyhetsched"

# Lowest first. A room may import itself and the rooms before it; rooms in one set do not import each other.
LEVELS: list[set[str]] = [
    {"errors", "clock", "instances"},
    {"model"},
    {"config"},
    {"mig"},
    {"rpc", "slurm", "throughput"},
    {"policies", "submit", "store"},
    {"placement"},
    {"daemon", "simulator", "node"},
    {"cli"},
]

# Who may import what: pyslurm ends the process where there is no slurm.conf, pynvml wants a driver.
DOORS = {
    "pyslurm": {"slurm/direct.py"},
    "pynvml": {"mig/nvml.py"},
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "grpc": {"rpc", "daemon", "node/quickstart.py"},
    "click": {"cli", "daemon/main.py"},
    "rich": {"cli"},
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package but generated ones, by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("rpc/gen/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """The full names of what a module imports, at the top or in a function, but not for type checking only."""
    checking = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    """The room of a path such as ``mig/layout.py`` or of a dotted name without the package."""
    return name.replace(".py", "").replace("/", ".").split(".")[0]


def level_of(room: str) -> int:
    """The level of a room; a new one must be given its place above."""
    return next(number for number, rooms in enumerate(LEVELS) if room in rooms)


def test_imports_go_down_only() -> None:
    wrong = []
    for name, tree in modules():
        room = room_of(name)
        if room == "__init__":
            continue
        for target in imported(tree):
            if target.startswith("pyhetsched.") and not target.startswith("pyhetsched.__"):
                other = room_of(target.removeprefix("pyhetsched."))
                if other != room and level_of(other) >= level_of(room):
                    wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_the_outside_world_has_one_door_each() -> None:
    wrong = []
    for name, tree in modules():
        for target in imported(tree):
            allowed = DOORS.get(target.split(".")[0])
            if allowed is not None and room_of(name) not in allowed and name not in allowed:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_nothing_heavy_comes_with_the_package() -> None:
    assert list(imported(ast.parse((PACKAGE / "__init__.py").read_text()))) == []


def test_files_stay_readable() -> None:
    long = {name: count for name, tree in modules() if (count := len(ast.unparse(tree).splitlines())) > 400}
    assert long == {}
