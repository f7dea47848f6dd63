"""The contract of the methods on partitions, call by call, as Hive 2.3.10 keeps it.

Each scenario is a list of calls with their expected results; see ``test_contract.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import AddPartitionsRequest, DropPartitionsRequest, RequestPartsSpec

from tests.metastore.hive.contract import PARTITIONED, Throws, check, given, partition
from tests.metastore.hive.hive_node import HiveNode

STORES = ("folder", "postgresql")


@pytest.fixture
def served(running: HiveNode) -> HiveNode:
    """One node for all scenarios."""
    return running


def test_the_methods_that_add_and_find_partitions_keep_the_contract(served: HiveNode) -> None:
    outer, wh = served.folder, f"{served.warehouse}/pa.db/parted"
    other = "Partition does not belong to target table pa.parted"
    absent = "Unable to add partition because table or database do not exist"

    def request(*values: tuple[str, str], **fields: Any) -> Any:
        parts = [partition("pa", *pair) for pair in values]
        return AddPartitionsRequest("pa", "parted", parts, **{"ifNotExists": False, **fields})

    def values(partitions: Any) -> list[list[str]]:
        return [part.values for part in partitions]

    with served.stub() as client:
        given(client, "pa")
        check(
            client,
            [
                (
                    lambda c: c.add_partition(partition("pa", "1", "x")).sd.location,
                    f"{wh}/p=1/q=x",
                ),
                (
                    lambda c: c.add_partition(partition("pa", "1", "x")),
                    Throws("AlreadyExistsException", "Partition already exists: ", begins=True),
                ),
                (lambda c: c.add_partition(partition("pa", "1")), PARTITIONED),
                (
                    lambda c: c.add_partition(partition("pa", "1", name="nope")),
                    Throws("InvalidObjectException", absent),
                ),
                (
                    lambda c: c.add_partition(partition("pa", "1", name="t1")),
                    Throws(
                        "MetaException",
                        "Invalid partition key & values; keys [], values [1, ]",
                    ),
                ),
                (
                    lambda c: c.add_partition(partition("pa", "01", "a/b=c% :#")).sd.location,
                    f"{wh}/p=01/q=a%2Fb%3Dc%25 %3A%23",
                ),
                (
                    lambda c: c.add_partition(partition("pa", "2", "")).sd.location,
                    f"{wh}/p=2/q=__HIVE_DEFAULT_PARTITION__",
                ),
                (
                    lambda c: (
                        c.add_partition(
                            partition("pa", "3", "z", location=f"{outer}/pz/")
                        ).sd.location
                    ),
                    f"file:{outer}/pz",
                ),
                (
                    lambda c: values(
                        c.add_partitions_req(
                            request(("1", "x"), ("4", "n"), ifNotExists=True, needResult=True)
                        ).partitions
                    ),
                    [["4", "n"]],
                ),
                (lambda c: c.add_partitions_req(request(("5", "n"), needResult=False)), {}),
                (lambda c: c.add_partitions_req(request()), {}),
                (
                    lambda c: c.add_partitions_req(request(("6", "n"), ("6", "n"))),
                    Throws("MetaException", "Duplicate partitions in the list", begins=True),
                ),
                (
                    lambda c: values(
                        c.add_partitions_req(
                            request(("4", "n"), ("4", "n"), ifNotExists=True, needResult=True)
                        ).partitions
                    ),
                    [],
                ),
                (
                    lambda c: c.add_partitions_req(request(("4", "n"), ("4", "n"))),
                    Throws("AlreadyExistsException", "Partition already exists: ", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(request(("7", "n"), ("1", "x"))),
                    Throws("AlreadyExistsException", "Partition already exists: ", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(
                        AddPartitionsRequest("pa", "no", [partition("pa", "1", name="no")], False)
                    ),
                    Throws("InvalidObjectException", "Unable to add partitions", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(
                        AddPartitionsRequest(
                            "pa", "parted", [partition("pa", "1", name="t1")], False
                        )
                    ),
                    Throws("MetaException", other, begins=True),
                ),
                (lambda c: c.add_partitions([partition("pa", "8", "n")]), 1),
                (lambda c: c.append_partition("pa", "parted", ["9", "n"]).values, ["9", "n"]),
                (
                    lambda c: c.append_partition_by_name("pa", "parted", "q=m/p=9").values,
                    ["9", "m"],
                ),
                (
                    lambda c: c.get_partition_names("pa", "parted", -1),
                    [
                        "p=01/q=a%2Fb%3Dc%25 %3A%23",
                        "p=1/q=x",
                        "p=2/q=__HIVE_DEFAULT_PARTITION__",
                        "p=3/q=z",
                        "p=4/q=n",
                        "p=5/q=n",
                        "p=8/q=n",
                        "p=9/q=m",
                        "p=9/q=n",
                    ],
                ),
                (lambda c: len(c.get_partition_names("pa", "parted", 0)), 9),
                (lambda c: len(c.get_partition_names("pa", "parted", 2)), 2),
                (lambda c: c.get_partition_names("pa", "t1", -1), []),
                (lambda c: c.get_partition_names("pa", "v1", -1), []),
                (lambda c: len(c.get_partitions("pa", "parted", -1)), 9),
                (lambda c: len(c.get_partitions("pa", "parted", 0)), 0),
                (
                    lambda c: c.get_partitions("pa", "nope", -1),
                    Throws("NoSuchObjectException", "pa.nope table not found"),
                ),
                (
                    lambda c: c.get_partition("PA", "Parted", ["99", "x"]),
                    Throws("NoSuchObjectException", "partition values=[99, x]"),
                ),
                (lambda c: c.get_partition("pa", "parted", ["1"]), PARTITIONED),
                (
                    lambda c: c.get_partition_with_auth("pa", "parted", ["1", "x"], "u", []).values,
                    ["1", "x"],
                ),
                (
                    lambda c: c.get_partition_by_name("pa", "parted", "q=x/p=1").values,
                    ["1", "x"],
                ),
                (
                    lambda c: c.get_partition_by_name("pa", "parted", "q=x/p=99"),
                    Throws("NoSuchObjectException", "partition values=[99, x]"),
                ),
                (
                    lambda c: c.get_partition_names_ps("pa", "parted", ["", "n"], -1),
                    ["p=4/q=n", "p=5/q=n", "p=8/q=n", "p=9/q=n"],
                ),
                (lambda c: c.get_partition_names_ps("pa", "parted", ["1"], -1), ["p=1/q=x"]),
                (
                    lambda c: c.get_partition_names_ps("pa", "parted", ["1", "2", "3"], -1),
                    Throws(
                        "MetaException",
                        "Incorrect number of partition values. numPartKeys=2, part_val=3",
                    ),
                ),
                (
                    lambda c: values(
                        c.get_partitions_ps_with_auth("pa", "parted", ["9"], 1, "u", [])
                    ),
                    [["9", "m"]],
                ),
                (
                    lambda c: values(
                        c.get_partitions_by_names("pa", "parted", ["p=1/q=x", "p=1/q=x", "zz"])
                    ),
                    [["1", "x"]],
                ),
                (
                    lambda c: values(
                        c.get_partitions_by_filter("pa", "parted", 'p = 1 and q = "x"', -1)
                    ),
                    [["1", "x"]],
                ),
                (
                    lambda c: values(c.get_partitions_by_filter("pa", "parted", "p > 7", -1)),
                    [["8", "n"], ["9", "m"], ["9", "n"]],
                ),
                (lambda c: c.get_num_partitions_by_filter("pa", "parted", 'q = "n"'), 4),
                (
                    lambda c: c.get_partitions_by_filter("pa", "parted", "a = 1", -1),
                    Throws(
                        "MetaException",
                        "Specified key <a> is not a partitioning key for the table",
                    ),
                ),
            ],
        )


def test_the_methods_that_change_and_drop_partitions_keep_the_contract(served: HiveNode) -> None:
    outer = served.folder
    folder = outer / "warehouse" / "pb.db" / "parted"
    missing = Throws("InvalidOperationException", "alter is not possible")

    def dropping(*names: str, if_exists: bool) -> Any:
        spec = RequestPartsSpec(names=list(names))
        return DropPartitionsRequest("pb", "parted", spec, True, if_exists, needResult=True)

    def renamed(client: Any, new: tuple[str, str]) -> None:
        moved = client.get_partition("pb", "parted", ["1", "x"])
        moved.values = list(new)
        client.rename_partition("pb", "parted", ["1", "x"], moved)

    with served.stub() as client:
        given(client, "pb")
        client.add_partitions([partition("pb", n, "x") for n in ("1", "2", "3", "4")])
        (folder / "p=1" / "q=x" / "file").write_text("rows")
        check(
            client,
            [
                (lambda c: c.alter_partition("pb", "parted", partition("pb", "9", "x")), missing),
                (
                    lambda c: c.alter_partitions(
                        "pb",
                        "parted",
                        [
                            partition("pb", "2", "x", location=f"{outer}/p2"),
                            partition("pb", "9", "x"),
                        ],
                    ),
                    missing,
                ),
                (
                    lambda c: c.get_partition("pb", "parted", ["2", "x"]).sd.location,
                    f"file:{folder}/p=2/q=x",
                ),
                (
                    lambda c: c.alter_partitions(
                        "pb", "parted", [partition("pb", "2", "x", location=f"{outer}/p2")]
                    ),
                    None,
                ),
                (
                    lambda c: c.get_partition("pb", "parted", ["2", "x"]).sd.location,
                    f"file:{outer}/p2",
                ),
                (lambda c: renamed(c, ("7", "y")), None),
                (
                    lambda c: c.get_partition("pb", "parted", ["7", "y"]).sd.location,
                    f"file:{folder}/p=7/q=y",
                ),
                (lambda c: (folder / "p=7" / "q=y" / "file").read_text(), "rows"),
                (
                    lambda c: c.rename_partition(
                        "pb", "parted", ["3", "x"], partition("pb", "4", "x")
                    ),
                    Throws(
                        "InvalidOperationException", "Partition already exists:pb.parted.[4, x]"
                    ),
                ),
                (
                    lambda c: c.rename_partition(
                        "pb", "parted", ["99", "x"], partition("pb", "98", "x")
                    ),
                    Throws(
                        "InvalidOperationException",
                        "Unable to rename partition because old partition does not exist",
                    ),
                ),
                (lambda c: c.drop_partition("pb", "parted", ["7", "y"], True), True),
                (lambda c: (folder / "p=7" / "q=y").exists(), False),
                (
                    lambda c: c.drop_partition("pb", "parted", ["7", "y"], True),
                    Throws("NoSuchObjectException", "partition values=[7, y]"),
                ),
                (lambda c: c.drop_partition_by_name("pb", "parted", "q=x/p=3", False), True),
                (lambda c: (folder / "p=3" / "q=x").exists(), True),
                (
                    lambda c: c.drop_partitions_req(
                        dropping("p=4/q=x", "p=66/q=x", if_exists=False)
                    ),
                    Throws("NoSuchObjectException", "Some partitions to drop are missing"),
                ),
                (
                    lambda c: [
                        part.values
                        for part in c.drop_partitions_req(
                            dropping("p=4/q=x", "p=66/q=x", if_exists=True)
                        ).partitions
                    ],
                    [["4", "x"]],
                ),
                *(
                    (
                        lambda c, others=others: c.drop_partitions_req(
                            dropping("p=\0/q=x", *others, if_exists=False)
                        ),
                        Throws("NoSuchObjectException", "Some partitions to drop are missing"),
                    )
                    for others in ([], [f"p={number}/q=x" for number in range(20)])
                ),
                (lambda c: c.get_partition_names("pb", "parted", -1), ["p=2/q=x"]),
            ],
        )


def test_like_matches_the_patterns_that_spark_sends_for_like_startswith_and_contains(
    served: HiveNode,
) -> None:
    texts = ["price $5", "a^b", "+49 30", "f(x)", "line\nfeed", "plain", "pla.n"]
    filters = {
        'q like "price $.*"': ["price $5"],
        "q like 'a^.*'": ["a^b"],
        'q like "+49.*"': ["+49 30"],
        'q like ".*(.*"': ["f(x)"],
        'q like ".*line.*feed.*"': ["line\nfeed"],
        'q like "pla.n"': ["plain", "pla.n"],
        'q like "(?i)PLAIN"': [],
    }
    with served.stub() as client:
        given(client, "pl")
        client.add_partitions([partition("pl", "1", text) for text in texts])
        for text, expected in filters.items():
            partitions = client.get_partitions_by_filter("pl", "parted", text, -1)
            assert sorted(part.values[1] for part in partitions) == sorted(expected), text


def test_a_filter_or_pattern_that_is_too_expensive_is_refused(served: HiveNode) -> None:
    long = " or ".join(f"(p = {number} and q = 'a')" for number in range(2_000))
    dear = "((a{99}){99}){99}"
    limit = Throws("MetaException", "a filter has at most", begins=True)
    weight = Throws("MetaException", f"the pattern {dear!r} is too expensive", begins=True)
    with served.stub() as client:
        given(client, "pd")
        check(
            client,
            [
                (lambda c: c.get_partitions_by_filter("pd", "parted", long, -1), limit),
                (lambda c: c.get_partitions_by_filter("pd", "parted", " " * 300_000, -1), limit),
                (lambda c: c.get_tables("pd", dear), weight),
                (lambda c: c.get_databases(dear), weight),
            ],
        )
