"""Runs the examples of a page, so that the documentation cannot drift from the program.

A block of Python or of console input in README.md or docs/ is preceded by one comment line, which a
reader does not see:

    <!-- run -->              the block is run; it must succeed and print what the page shows
    <!-- run: spark -->       the same; the page needs a Spark session (its test is marked `spark`)
    <!-- run: fails -->       the last command of the block must fail, and print what is shown
    <!-- not run: REASON -->  the block is shown only, because of the reason

The blocks of a page are run in order, in one empty folder, and the Python blocks share one
namespace: a page reads, and runs, from top to bottom. A Python block is plain code, which uses
`assert`, or it is a dialogue with `>>>`. A console block has commands after `$ ` (continued after
`> `), each followed by the lines that it prints. If nothing follows a command, its output does not
matter; `...` stands for any text, and for several lines if it is alone on its line. What a command
leaves running in the background is killed at the end of the page. In the tests, a command
``strandline …`` that needs no shell runs in a fork of a process that has imported it (`Forker`).

By hand, in an empty folder: ``PYTHONPATH=ROOT python ROOT/tests/project/docs_examples.py PAGE``.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.cli import main

MARK = re.compile(r"\s*<!-- (?P<run>run|not run)(?:: (?P<words>.+?))? -->\s*")
FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)\s*")
LANGUAGES = ("python", "console")
WORDS = {"spark", "fails"}
COMMAND_SECONDS = 120
OURS = re.compile(r"strandline [\w ./@:=,'-]+")
"""A ``strandline`` command that needs no shell."""
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1"}


class Mismatch(Exception):
    """An example that does not do what its page says."""


@dataclass(frozen=True, slots=True)
class Example:
    """One block; ``line`` is the number of its first line in the page."""

    language: str
    source: str
    line: int
    run: bool
    words: frozenset[str]


def examples(text: str) -> list[Example]:
    """The Python and console blocks of a page, in order.

    Raises ValueError for a mark with nothing below it, an unmarked block, an unknown word, and a
    block that is not run and gives no reason.
    """
    listed: list[Example] = []
    mark: re.Match[str] | None = None
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if fence := FENCE.fullmatch(line):
            source = _body(lines, fence["indent"])
            if fence["language"] in LANGUAGES:
                listed.append(_example(fence["language"], source, number + 1, mark))
                mark = None
        elif seen := MARK.fullmatch(line):
            _refuse_idle(mark, number)
            mark = seen
        elif line.strip():
            _refuse_idle(mark, number)
    _refuse_idle(mark, text.count("\n"))
    return listed


def _body(lines: Iterator[tuple[int, str]], indent: str) -> str:
    body: list[str] = []
    for _, line in lines:
        if line.rstrip() == f"{indent}```":
            break
        body.append(line)
    return textwrap.dedent("\n".join(body)) + "\n"


def _refuse_idle(mark: re.Match[str] | None, number: int) -> None:
    if mark:
        raise ValueError(f"line {number}: the mark above stands before no Python or console block")


def _example(language: str, source: str, line: int, mark: re.Match[str] | None) -> Example:
    if mark is None:
        raise ValueError(f"line {line}: the {language} block has no `<!-- run -->` above it")
    run = mark["run"] == "run"
    if not run and not mark["words"]:
        raise ValueError(f"line {line}: the {language} block is not run and does not say why")
    words = frozenset((mark["words"] or "").split()) if run else frozenset()
    if words - WORDS:
        raise ValueError(f"line {line}: unknown words {sorted(words - WORDS)} in the mark")
    return Example(language, source, line, run, words)


def run_page(page: Path, forker: Forker | None = None) -> None:
    """Run the page's examples in the current folder, ``strandline`` commands by ``forker``.

    Raises Mismatch if an example fails, or prints something else than the page shows.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    groups: list[int] = []
    try:
        for example in examples(page.read_text(encoding="utf-8")):
            if not example.run:
                continue
            if example.language == "console":
                _run_console(example, page.name, groups, forker)
            elif ">>> " in example.source:
                _run_dialogue(example, page.name, namespace)
            else:
                # The page itself is the file of the code, so that a traceback shows its lines.
                source = "\n" * (example.line - 1) + example.source
                exec(compile(source, str(page), "exec"), namespace)
    finally:
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _run_dialogue(example: Example, name: str, namespace: dict[str, object]) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(
        example.source, namespace, name, name, example.line - 1
    )
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=options).run(
        test, out=report.append, clear_globs=False
    )
    namespace.update(test.globs)
    if result.failed:
        raise Mismatch("".join(report))


def commands(source: str) -> list[tuple[str, str]]:
    """The (command, expected output) pairs of a console block."""
    pairs: list[tuple[str, str]] = []
    for line in source.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
        elif not pairs:
            raise ValueError(f"a console block starts with a command after '$ ', not with {line!r}")
        else:
            command, expected = pairs[-1]
            if line.startswith("> ") and not expected:
                pairs[-1] = (f"{command}\n{line[2:]}", "")
            else:
                pairs[-1] = (command, f"{expected}{line}\n")
    return pairs


def _run_console(example: Example, name: str, groups: list[int], forker: Forker | None) -> None:
    pairs = commands(example.source)
    for index, (command, expected) in enumerate(pairs):
        must_fail = "fails" in example.words and index == len(pairs) - 1
        if forker is not None and OURS.fullmatch(command):
            status, output = forker.run(command)
        else:
            status, output = _run_command(command, groups)
        where = f"{name}, line {example.line}: $ {command}\n"
        if (status != 0) != must_fail:
            raise Mismatch(f"{where}ended with status {status} and printed\n{output}")
        if expected.strip() and not matches(expected, output):
            raise Mismatch(f"{where}should print\n{expected}but printed\n{output}")


def _run_command(command: str, groups: list[int]) -> tuple[int, str]:
    """Status and output. The output goes to a file: a background process would hold a pipe."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["sh", "-c", command],
            env={**os.environ, **PLAIN, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        groups.append(process.pid)
        try:
            status = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise Mismatch(f"$ {command}\nran for more than {COMMAND_SECONDS} s") from None
        output.seek(0)
        return status, output.read().decode(errors="replace")


class Forker:
    """Runs ``strandline`` commands in forks of a process that has imported them and opened nothing.

    Importing them takes a command longer than its work.
    """

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(COMMAND_SECONDS)
        if os.fork() == 0:
            self._connection.close()
            while message := theirs.recv(1 << 16):
                theirs.send(b"%d" % _status_of_fork(*json.loads(message)))
            os._exit(0)
        theirs.close()

    def run(self, command: str) -> tuple[int, str]:
        """Status and output."""
        with tempfile.NamedTemporaryFile() as output:
            message = [shlex.split(command)[1:], os.getcwd(), output.name]
            self._connection.send(json.dumps(message).encode())
            status = int(self._connection.recv(100))
            return status, output.read().decode(errors="replace")


def _status_of_fork(words: list[str], folder: str, output: str) -> int:
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status: object = 1
    try:
        os.chdir(folder)
        os.environ.update(PLAIN)
        file = os.open(output, os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        main(words, prog_name="strandline")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)


def matches(expected: str, output: str) -> bool:
    """Whether the output is what the page shows; ``...`` is any text, line ends do not count."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = re.escape(tidy(expected)).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, tidy(output), re.DOTALL) is not None


def report(say: Callable[[object], None], hear: Callable[[], Any], spark: str) -> None:
    """For each page and folder received, report what is wrong with the examples of the page.

    ``spark`` are the options for Spark, which is started once for all pages. For
    `tests.sql.processes.Process`.
    """
    warnings.resetwarnings()
    forker = Forker()
    os.environ["PYSPARK_SUBMIT_ARGS"] = spark
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with contextlib.suppress(EOFError):
        while True:
            page, folder = hear()
            os.chdir(folder)
            say(_complaint(Path(page), forker))


def _complaint(page: Path, forker: Forker) -> str:
    try:
        run_page(page, forker)
    except Mismatch as mismatch:
        return str(mismatch)
    except BaseException:
        return traceback.format_exc()
    finally:
        _stop_spark()
    return ""


def _stop_spark() -> None:
    """Stop the session, so that the next page starts one in the JVM of this one."""
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


if __name__ == "__main__":
    try:
        run_page(Path(sys.argv[1]))
    except Mismatch as mismatch:
        sys.exit(str(mismatch))
