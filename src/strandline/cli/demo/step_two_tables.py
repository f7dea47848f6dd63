"""Step 4: one transaction over two tables, and a reader that loops through its commit."""

from __future__ import annotations

import threading

from strandline.cli.demo.context import (
    CANCELLATIONS,
    FLIGHTS,
    Demo,
    expected_aggregates,
    flight_aggregates,
    one,
)

STEP = "4 two tables"
ANSWERS = 20
WAIT_SECONDS = 240.0

Answer = tuple[int, int]


class LoopingReader:
    """Counts both tables at one snapshot after the other until it is told to stop."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._stop = False
        self._news = threading.Condition()
        self.answers: list[Answer] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="looping reader")

    def __enter__(self) -> LoopingReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` more answers were given."""
        goal = len(self.answers) + count
        with self._news:
            self._news.wait_for(
                lambda: self.failure is not None or len(self.answers) >= goal, WAIT_SECONDS
            )
        if self.failure is not None:
            raise self.failure

    def _loop(self) -> None:
        try:
            while not self._stop:
                answer = self._look()
                with self._news:
                    self.answers.append(answer)
                    self._news.notify_all()
        except BaseException as error:
            with self._news:
                self.failure = error
                self._news.notify_all()

    def _look(self) -> Answer:
        tables = self._demo.tables
        with tables.snapshot(FLIGHTS, CANCELLATIONS) as snapshot:
            flights = tables.read(FLIGHTS, snapshot=snapshot).selectExpr("1 AS f", "0 AS c")
            gone = tables.read(CANCELLATIONS, snapshot=snapshot).selectExpr("0 AS f", "1 AS c")
            counts = one(flights.unionAll(gone).selectExpr("sum(f)", "sum(c)"))
        return int(counts[0] or 0), int(counts[1] or 0)


def run(demo: Demo) -> None:
    """Move the cancelled flights from one table to the other, in one step for every reader."""
    demo.report.heading(4, "One transaction over two tables, watched by a reader in a loop")
    frame = demo.frame("flights")
    flown, cancelled = frame[frame["dep_time"].notna()], frame[frame["dep_time"].isna()]
    before, after = (len(frame), 0), (len(flown), len(cancelled))
    tables = demo.tables
    tables.create(CANCELLATIONS, "time_hour timestamp, carrier string, flight int, origin string")
    with (
        LoopingReader(demo) as reader,
        demo.report.bar("answers of the reader", total=3) as bar,
    ):
        reader.wait_for(ANSWERS)
        bar.step()
        with tables.transaction() as transaction:
            gone = transaction.read(FLIGHTS).where("dep_time IS NULL")
            transaction.append(
                CANCELLATIONS, gone.select("time_hour", "carrier", "flight", "origin")
            )
            transaction.delete(FLIGHTS, "dep_time IS NULL")
            reader.wait_for(1)
            bar.step()
        reader.wait_for(ANSWERS + 1)
        bar.step()
    _judge(demo, reader.answers, before, after)
    demo.ledger.compare(
        STEP,
        "flights that departed",
        expected=expected_aggregates(flown),
        found=flight_aggregates(tables.read(FLIGHTS)),
    )
    demo.ledger.compare(
        STEP,
        "cancellations by carrier",
        expected=sorted((str(c), int(n)) for c, n in cancelled.groupby("carrier").size().items()),
        found=sorted(
            tuple(r) for r in tables.read(CANCELLATIONS).groupBy("carrier").count().collect()
        ),
    )


def _judge(demo: Demo, answers: list[Answer], before: Answer, after: Answer) -> None:
    split = answers.count(before)
    demo.ledger.compare(
        STEP,
        "answers of the reader: all before, then all after, none in between",
        expected=[before] * split + [after] * (len(answers) - split),
        found=answers,
    )
    for what, count in (("before", split), ("after", answers.count(after))):
        demo.ledger.compare(
            STEP,
            f"at least {ANSWERS} answers {what} the commit",
            expected=True,
            found=count >= ANSWERS,
        )
    demo.report.say(
        f"the reader answered {split} times {before} and {len(answers) - split} times {after}"
    )
