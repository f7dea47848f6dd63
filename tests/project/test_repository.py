"""What must hold for the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import strandline
from tests.project.checkout import ROOT, repository_files

PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+_-]*")

# Needles are concatenated here, so that this file does not contain them.
REGISTRIES = [
    "pypi" + ".org",
    "files.python" + "hosted",
    "deb." + "debian.org",
    "archive." + "ubuntu.com",
    "registry." + "npmjs",
    "repo1." + "maven",
    "repo.maven." + "apache",
    "proxy." + "golang.org",
]
# A made-up home folder in a test is not a finding; the folder that this was built in is.
FOLDERS = ["/root", "/work", *([str(ROOT)] if len(ROOT.parts) > 2 else [])]
MACHINE_PATH = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, FOLDERS))})/\w".encode())


def findings(path: Path) -> list[str]:
    """The registry addresses and the paths of a build machine in a file."""
    content = path.read_bytes()
    needles = [needle for needle in REGISTRIES if needle.encode() in content]
    return needles + [match.decode() for match in MACHINE_PATH.findall(content)]


def test_no_file_contains_a_registry_address_or_a_machine_path() -> None:
    leaks = {
        path.relative_to(ROOT): hits for path in repository_files() if (hits := findings(path))
    }
    assert leaks == {}


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://" + REGISTRIES[0] + "/simple",
        "Acquire " + REGISTRIES[2],
        'ROOT = "/ro' + 'ot/data"',
        "cd /wo" + "rk/here",
        f"file://{FOLDERS[-1]}/data",
    ],
)
def test_a_planted_address_or_path_is_found(tmp_path: Path, line: str) -> None:
    planted = tmp_path / "planted"
    planted.write_text(f"first line\n{line}\n")
    assert findings(planted)


def constraints() -> list[str]:
    return (ROOT / "constraints.txt").read_text().splitlines()


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in constraints() if not PIN.fullmatch(line)] == []
    names = [canonicalize_name(line.partition("==")[0]) for line in constraints()]
    assert len(names) == len(set(names))


def test_constraints_name_everything_that_the_dev_extra_requires() -> None:
    pinned = {canonicalize_name(line.partition("==")[0]) for line in constraints()}
    wanted = {("strandline", "dev"), ("pip", ""), ("setuptools", "")}
    seen: set[tuple[str, str]] = set()
    while wanted - seen:
        name, extra = item = min(wanted - seen)
        seen.add(item)
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            child = canonicalize_name(requirement.name)
            wanted |= {(child, inner) for inner in requirement.extras} | {(child, "")}
    missing = {name for name, _ in seen} - pinned - {"strandline"}
    assert missing == set()


def test_the_version_is_the_same_in_pyproject_and_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == strandline.__version__


def test_the_changelog_opens_with_this_version() -> None:
    releases = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == strandline.__version__.partition(".dev")[0]


DOCSTRING = re.compile(r'(#.*\n|\n)*r?"""\S')


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "src" / "strandline").rglob("*.py"))
        if not DOCSTRING.match(path.read_text(encoding="utf-8"))
    ]
    assert silent == []


def make(*targets: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *targets], cwd=cwd, capture_output=True, text=True, check=False)


def planted_checkout(folder: Path, *, status: int) -> Path:
    """A checkout whose tools all succeed, except Python, which ends with ``status``."""
    for name in (".ci/run", "Makefile"):
        copy = folder / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
        copy.chmod(0o755)
    tools = {"scripts/setup": 0, ".venv/bin/python": status}
    tools |= {f".venv/bin/{name}": 0 for name in ("ruff", "mypy", "lint-imports")}
    for name, ends_with in tools.items():
        tool = folder / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho "ran $0 $*"\nexit {ends_with}\n')
        tool.chmod(0o755)
    return folder


# 5 is the exit status of pytest if it collected no test.
@pytest.mark.parametrize("status", [0, 1, 5])
def test_the_build_server_run_fails_exactly_when_the_tests_fail(
    tmp_path: Path, status: int
) -> None:
    checkout = planted_checkout(tmp_path, status=status)
    run = subprocess.run([checkout / ".ci" / "run"], cwd="/", capture_output=True, check=False)
    assert (run.returncode == 0) == (status == 0)


def test_make_test_leaves_out_the_long_tests(tmp_path: Path) -> None:
    output = make("test", cwd=planted_checkout(tmp_path, status=0)).stdout
    for command in (
        "scripts/setup",
        "python -m pytest -q -n auto --dist loadfile",
        " -m not soak and not teeth and not slow tests",
    ):
        assert command in output


def test_the_build_server_runs_each_test_and_static_check(tmp_path: Path) -> None:
    checkout = planted_checkout(tmp_path, status=0)
    output = subprocess.run([checkout / ".ci" / "run"], capture_output=True, text=True).stdout
    for command in (
        " -m not soak and not teeth and not slow tests",
        " -m (teeth or slow) and not soak tests",
        "ruff check",
        "ruff format --check",
        "mypy --strict",
        "lint-imports",
    ):
        assert command in output


@pytest.mark.parametrize("tool", ["ruff", "mypy", "lint-imports"])
def test_make_teeth_fails_if_a_static_check_fails_and_still_runs_the_tests(
    tmp_path: Path, tool: str
) -> None:
    checkout = planted_checkout(tmp_path, status=0)
    (checkout / ".venv" / "bin" / tool).write_text("#!/bin/sh\necho what is wrong\nexit 1\n")
    run = make("teeth", cwd=checkout)
    assert run.returncode != 0
    assert "what is wrong" in run.stdout
    assert "-m pytest" in run.stdout


def test_make_bench_passes_on_the_chosen_groups(tmp_path: Path) -> None:
    checkout = planted_checkout(tmp_path, status=0)
    assert "-m bench --only wire,model" in make("bench", "ONLY=wire,model", cwd=checkout).stdout
