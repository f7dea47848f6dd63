"""Every example in the documentation is run, and every link in it has a target."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from tests import spark_classes
from tests.project import docs_examples
from tests.project.checkout import ROOT
from tests.sql.processes import Process

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)")
ANCHOR = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)#([^)\s]+)\)")
LONG_PAGES = ("commands", "move-the-catalog", "pyiceberg", "run-a-node")
"""Pages without Spark that start many processes. What they show has tests of its own."""
PAGE_SECONDS = 900
SPARK_OPTIONS = (
    # The examples run each piece of code only a few times: optimizing it does not pay.
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" '
    f"{spark_classes.FOR_FEW_ROWS} --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell"
)


def page_parameters(*, run: bool = False) -> list[object]:
    """The pages. If their examples are ``run``, those with Spark have its marker, and are slow."""
    parameters: list[object] = []
    for page in PAGES:
        has_spark = "<!-- run: spark" in page.read_text(encoding="utf-8")
        marks = [pytest.mark.spark] * (run and has_spark)
        if run and (has_spark or page.stem in LONG_PAGES):
            marks.append(pytest.mark.slow)
        parameters.append(pytest.param(page, marks=marks, id=str(page.relative_to(ROOT))))
    return parameters


def run(page: Path, folder: Path, reader: Process | None = None) -> str:
    """What is wrong with the examples of ``page``; empty if nothing is.

    They run in ``reader``, or in a new process.
    """
    with nullcontext(reader) if reader else reading() as process:
        process.say([str(page), str(folder)])
        complaint: str = process.hear(timeout=PAGE_SECONDS)
    return complaint


def reading() -> Process:
    return Process("tests.project.docs_examples:report", SPARK_OPTIONS)


@pytest.fixture(scope="module")
def spark_reader() -> Iterator[Process]:
    """Runs pages that start Spark, in one JVM."""
    with reading() as process:
        yield process


@pytest.mark.parametrize("page", page_parameters(run=True))
def test_the_examples_of_a_page_do_what_it_says(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_examples = [e for e in docs_examples.examples(page.read_text(encoding="utf-8")) if e.run]
    starts_spark = any("spark" in example.words for example in run_examples)
    reader = request.getfixturevalue("spark_reader") if starts_spark else None
    assert not run_examples or run(page, tmp_path, reader) == ""


@pytest.mark.parametrize("page", page_parameters())
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in targets if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", page_parameters())
def test_the_links_of_a_page_lead_to_headings(page: Path) -> None:
    links = ANCHOR.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{path}#{anchor}"
        for path, anchor in links
        if anchor not in anchors(page.parent / path if path else page)
    ]
    assert missing == []


PYTHON_THEN_CONSOLE = """
<!-- run -->
```python
from pathlib import Path
Path("left").write_text("by python\\n")
```

1. In a list:

   <!-- run -->
   ```console
   $ cat left
   by python
   $ printf 'a\\nb\\nc 17 s\\n'
   a
   ...
   c ... s
   $ false ||
   > echo continued
   continued
   ```

<!-- run -->
```python
>>> Path("left").exists()
True
```

<!-- run: fails -->
```console
$ ls nowhere
ls: ...
```

<!-- not run: it never ends -->
```console
$ yes
```
"""


def test_a_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PYTHON_THEN_CONSOLE)
    assert run(page, tmp_path) == ""


@pytest.mark.parametrize(
    ("language", "body", "mark"),
    [
        ("python", "assert 1 == 2", "run"),
        ("python", ">>> 1 + 1\n3", "run"),
        ("console", "$ echo two\none", "run"),
        ("console", "$ echo one\n$ false", "run"),
        ("console", "$ true", "run: fails"),
    ],
)
def test_a_wrong_example_fails_its_page(
    tmp_path: Path, language: str, body: str, mark: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {mark} -->\n```{language}\n{body}\n```\n")
    assert run(page, tmp_path) != ""


@pytest.mark.parametrize(
    "text",
    [
        "```python\n1\n```\n",
        "<!-- run -->\ntext\n",
        "<!-- run -->\n",
        "<!-- not run -->\n```console\n$ x\n```\n",
        "<!-- run: quickly -->\n```python\n1\n```\n",
    ],
    ids=["unmarked", "mark-before-text", "mark-at-end", "no-reason", "unknown-word"],
)
def test_a_block_without_a_valid_mark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        docs_examples.examples(text)


def test_background_processes_of_a_page_are_killed_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "<!-- run -->\n```console\n$ mkfifo gate; cat gate & echo $! > pid\n```\n"
    )
    assert run(tmp_path / "page.md", tmp_path) == ""
    left = int((tmp_path / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(left)
        # It was sent SIGKILL, and may take a moment to end.
        assert process.status() == psutil.STATUS_ZOMBIE or process.wait(30) is None
