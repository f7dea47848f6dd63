"""Every example in the documentation is run, and every link in it leads somewhere."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil
import pytest

from tests.project import docs_examples
from tests.project.checkout import ROOT
from tests.sql.processes import Process

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)")
ANCHOR = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)#([^)\s]+)\)")
PAGE_SECONDS = 900
SPARK_OPTIONS = (
    # The examples run each piece of code a few times: compiling it well does not pay.
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" '
    "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell"
)


def page_parameters() -> list[object]:
    parameters: list[object] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marks = [pytest.mark.spark] if "<!-- run: spark" in text else []
        parameters.append(pytest.param(page, marks=marks, id=str(page.relative_to(ROOT))))
    return parameters


def run(page: Path, folder: Path) -> str:
    """What is wrong with the examples of ``page``, in a process of its own; empty if nothing is."""
    target = "tests.project.docs_examples:report"
    with Process(target, str(page), str(folder), SPARK_OPTIONS) as process:
        complaint: str = process.hear(timeout=PAGE_SECONDS)
    return complaint


@pytest.mark.parametrize("page", page_parameters())
def test_the_examples_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    if any(example.run for example in docs_examples.examples(page.read_text(encoding="utf-8"))):
        assert run(page, tmp_path) == ""


@pytest.mark.parametrize("page", page_parameters())
def test_the_links_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in targets if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The names by which the headings of a page are linked to, made as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", page_parameters())
def test_the_links_lead_to_headings(page: Path) -> None:
    found = ANCHOR.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{path}#{anchor}"
        for path, anchor in found
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
def test_an_example_that_is_wrong_fails_its_page(
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
def test_a_block_without_a_sound_mark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        docs_examples.examples(text)


def test_what_a_page_started_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "<!-- run -->\n```console\n$ mkfifo gate; cat gate & echo $! > pid\n```\n"
    )
    assert run(tmp_path / "page.md", tmp_path) == ""
    left = int((tmp_path / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(left)
        # It was sent SIGKILL, and dies in its own time.
        assert process.status() == psutil.STATUS_ZOMBIE or process.wait(30) is None
