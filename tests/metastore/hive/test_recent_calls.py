"""The calls before a drop tell whether it belongs to a larger statement."""

from __future__ import annotations

import pytest

from strandline.metastore.hive.recent_calls import RecentCalls
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift.messages import CALL, encode_message


def sent(method: str, **args: object) -> bytes:
    return encode_message(CALL, method, 1, HIVE_CODEC.encode_args(method, args))


LIST = sent("get_all_tables", db_name="S")
LOOK = sent("get_table", dbname="s", tbl_name="T")
DROP = sent("drop_table", dbname="s", name="t", deleteData=True)
OTHER = sent("get_table", dbname="s", tbl_name="u")


@pytest.mark.parametrize(
    ("calls", "cascades"),
    [
        ([LIST, LOOK], True),
        ([LIST], True),
        ([LIST, LOOK, OTHER, b""], True),
        ([LIST, LOOK, LOOK], False),
        ([LIST, DROP], False),
        ([LOOK], False),
    ],
)
def test_a_drop_after_a_list_of_tables_and_at_most_one_look_may_cascade(
    calls: list[bytes], cascades: bool
) -> None:
    assert RecentCalls(calls).cascades("s", "t") == cascades
