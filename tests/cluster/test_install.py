"""``make install DESTDIR=``: what lies where, with which rights, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
PLUGIN_DIR = "/usr/lib/slurm-test"
EXECUTABLES = (
    "usr/bin/hetsched", "usr/sbin/hetschedd", "usr/sbin/hetsched-node", "usr/lib/hetsched/hetsched-hook",
    *(f"usr/lib/hetsched/hooks/{name}" for name in ("prolog", "task-prolog", "epilog", "prolog-slurmctld",
                                                     "epilog-slurmctld")),
)  # fmt: skip
FILES = (
    "usr/lib/slurm-test/job_submit_hetsched.so", "usr/lib/systemd/system/hetschedd.service",
    "usr/lib/systemd/system/hetsched-node.service", "usr/lib/tmpfiles.d/hetsched.conf", "etc/hetsched/hetsched.toml",
    "usr/share/doc/hetsched/README.md", "usr/share/doc/hetsched/install.md",
)  # fmt: skip


def install(folder: Path) -> None:
    """Run make install into a folder."""
    variables = [f"DESTDIR={folder}", "PREFIX=/usr", f"PYTHON={sys.executable}", f"SLURM_PLUGIN_DIR={PLUGIN_DIR}"]
    done = subprocess.run(["make", "install", *variables], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything installed."""
    folder = tmp_path_factory.mktemp("install")
    install(folder)
    return folder


def test_everything_is_where_the_documents_say(installed: Path) -> None:
    assert [path for path in (*EXECUTABLES, *FILES) if not (installed / path).is_file()] == []
    assert {oct((installed / path).stat().st_mode & 0o777) for path in EXECUTABLES} == {"0o755"}
    assert {oct((installed / path).stat().st_mode & 0o777) for path in FILES} == {"0o644"}


def test_nothing_is_installed_that_others_may_write_or_that_names_the_folder(installed: Path) -> None:
    for path in installed.rglob("*"):
        assert not path.stat().st_mode & 0o022, path
        if path.is_file() and path.suffix not in (".pyc", ".so") and path.name != "hetsched-hook":
            assert str(installed).encode() not in path.read_bytes(), path


def test_the_commands_run_from_there(installed: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(installed / 'usr/lib/hetsched/python')!r}); " \
        "from pyhetsched.cli.main import main; sys.exit(main(['--version']))"  # fmt: skip
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hetsched, version ")


def test_a_second_install_keeps_the_configuration(installed: Path) -> None:
    config = installed / "etc/hetsched/hetsched.toml"
    config.write_text("[mode]\ndefault = 'shadow'\n")
    install(installed)
    assert config.read_text() == "[mode]\ndefault = 'shadow'\n"
