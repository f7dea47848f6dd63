"""What `scripts/setup` does on machines that lack something, and on those that lack nothing.

The real script runs in a copy of the checkout, with a PATH that contains stand-ins for the programs
whose absence, age or refusal is the case under test. Each stand-in logs how it was called.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project.checkout import ROOT

TOOLS = ("cat", "cp", "dirname", "env", "grep", "head", "id", "ln", "mkdir", "rm", "sed", "tail")

# A Python that logs each use of pip, and makes an environment that contains itself.
PYTHON = """
case "$*" in
"-m pip --version") exit 0 ;;
"-m pip "*) echo "pip $*" >>"$CALLS"; echo "$PIP_SAYS"; exit "${PIP_STATUS:-0}" ;;
*"-m venv "*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
*) exec REAL "$@" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A checkout with its own PATH."""

    checkout: Path
    programs: Path
    calls_file: Path

    def has(self, name: str, script: str) -> None:
        program = self.programs / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def setup(self, *parts: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "scripts" / "setup", *parts],
            env={"PATH": str(self.programs), "CALLS": str(self.calls_file), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """The calls of the stand-ins since the last time this was read."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "checkout", tmp_path / "programs", tmp_path / "calls")
    (made.checkout / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
        shutil.copy(ROOT / name, made.checkout / name)
    made.programs.mkdir()
    for tool in TOOLS:
        real = shutil.which(tool)
        assert real
        (made.programs / tool).symlink_to(real)
    made.has("python3", PYTHON.replace("REAL", sys.executable))
    made.has("java", java(17))
    return made


def java(major: int | str) -> str:
    """A Java that reports its version on standard error."""
    return f"""echo 'openjdk version "{major}.0.15" 2025-04-15' >&2"""


def user(machine: Machine, *, number: int) -> None:
    machine.has("id", f"echo {number}")


def apt_installs(machine: Machine, *, on_install: str = ":") -> None:
    """An apt-get that logs each call without its options, and does ``on_install`` on an install."""
    machine.has(
        "apt-get",
        f"""
        for word; do case $word in install|update) verb=$word ;; esac; last=$word; done
        echo "apt-get $verb $last" >>"$CALLS"
        [ "$verb" = update ] || {{ {on_install}
        }}
        """,
    )


def one_sentence(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("set-up stopped: ")
    return run.stderr


def test_the_first_run_installs_with_the_constraints_and_the_second_nothing(
    machine: Machine,
) -> None:
    assert machine.setup().returncode == 0
    first = machine.calls()
    assert first
    assert all("--constraint" in call for call in first)
    assert "[dev]" in first[-1]

    second = machine.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert machine.calls() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_is_installed(machine: Machine, name: str) -> None:
    machine.setup()
    machine.calls()
    with (machine.checkout / name).open("a") as file:
        file.write("\n# changed\n")
    machine.setup()
    assert machine.calls()


def test_a_failed_install_is_retried_by_the_next_run(machine: Machine) -> None:
    one_sentence(machine.setup(PIP_STATUS="1"))
    machine.calls()
    assert machine.setup().returncode == 0
    assert machine.calls()


@pytest.mark.parametrize(
    ("pip_says", "advice"),
    [
        ("Failed to establish a new connection: Temporary failure in name", "check the network"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for left==1", "constraints.txt names"),
        ("error: command 'gcc' failed", "command 'gcc' failed"),
    ],
)
def test_a_failed_install_prints_the_reason_in_one_line(
    machine: Machine, pip_says: str, advice: str
) -> None:
    assert advice in one_sentence(machine.setup(PIP_STATUS="1", PIP_SAYS=pip_says))


def test_an_old_python_is_refused(machine: Machine) -> None:
    machine.has("python3", "exit 1")
    assert "Python 3.11" in one_sentence(machine.setup())
    assert "nowhere/python" in one_sentence(machine.setup(PYTHON="nowhere/python"))


def test_the_debian_package_is_installed_for_a_python_without_venv(machine: Machine) -> None:
    real = (machine.programs / "python3").read_text()
    lacking = real.replace('case "$*" in', 'case "$*" in *ensurepip*) exit 1 ;; esac\ncase "$*" in')
    machine.has("python3", lacking)
    user(machine, number=0)
    apt_installs(machine)
    assert machine.setup("venv").returncode == 0
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert machine.calls()[0] == f"apt-get install {version}-venv"


@pytest.mark.parametrize("major", ["17", "21", "25-ea"])
def test_java_17_or_newer_is_left_alone(machine: Machine, major: str) -> None:
    machine.has("java", java(major))
    apt_installs(machine)
    assert machine.setup("java").returncode == 0
    assert machine.calls() == []


@pytest.mark.parametrize("java_found", ["nothing", "1.8", "11"])
def test_java_is_installed_for_root(machine: Machine, java_found: str) -> None:
    (machine.programs / "java").unlink()
    if java_found != "nothing":
        machine.has("java", java(java_found))
    machine.has("java17", java(17))
    user(machine, number=0)
    apt_installs(machine, on_install=f'cp "{machine.programs}/java17" "{machine.programs}/java"')
    assert machine.setup("java").returncode == 0
    assert machine.calls() == ["apt-get install openjdk-17-jre-headless"]


def test_an_old_package_list_is_updated_and_a_newer_java_installed(machine: Machine) -> None:
    (machine.programs / "java").unlink()
    machine.has("java21", java(21))
    user(machine, number=0)
    newer = f'case $last in *21*) cp "{machine.programs}/java21" "{machine.programs}/java" ;;'
    apt_installs(machine, on_install=f"{newer} *) exit 100 ;; esac")
    assert machine.setup("java").returncode == 0
    assert machine.calls() == [
        "apt-get install openjdk-17-jre-headless",
        "apt-get update update",
        "apt-get install openjdk-17-jre-headless",
        "apt-get install openjdk-21-jre-headless",
    ]


def test_java_is_installed_for_a_user_with_passwordless_sudo(machine: Machine) -> None:
    (machine.programs / "java").unlink()
    machine.has("java17", java(17))
    user(machine, number=1000)
    machine.has("sudo", 'shift; echo "sudo ${1##*/}" >>"$CALLS"; [ "$1" = true ] || "$@"')
    apt_installs(machine, on_install=f'cp "{machine.programs}/java17" "{machine.programs}/java"')
    assert machine.setup("java").returncode == 0
    assert machine.calls() == [
        "sudo true",
        "sudo env",
        "apt-get install openjdk-17-jre-headless",
    ]


@pytest.mark.parametrize("sudo", [None, "exit 1"], ids=["no-sudo", "sudo-asks"])
def test_a_user_without_rights_gets_a_message_that_names_the_package(
    machine: Machine, sudo: str | None
) -> None:
    (machine.programs / "java").unlink()
    user(machine, number=1000)
    apt_installs(machine)
    if sudo:
        machine.has("sudo", sudo)
    assert "openjdk-17-jre-headless" in one_sentence(machine.setup("java"))
    assert machine.calls() == []


def test_an_old_java_home_is_named_in_the_error(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    machine.has("java", java("1.8"))
    shutil.copy(machine.programs / "java", home / "bin" / "java")
    sentence = one_sentence(machine.setup("java", JAVA_HOME=str(home)))
    assert str(home) in sentence
    assert "Java 8" in sentence


def test_a_missing_server_is_installed_once(machine: Machine) -> None:
    user(machine, number=0)
    apt_installs(machine)
    assert machine.setup("etcd-server").returncode == 0
    assert machine.calls() == ["apt-get install etcd-server"]
    machine.has("etcd", ":")
    assert machine.setup("etcd-server").returncode == 0
    assert machine.calls() == []


def test_an_unknown_part_is_refused(machine: Machine) -> None:
    assert "'jva'" in one_sentence(machine.setup("jva"))
