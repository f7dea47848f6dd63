from __future__ import annotations

import pytest

from strandline.errors import InvalidInput
from strandline.metastore.hive.locations import hadoop_location, same_location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///a/b", "file:/a/b"),
        ("file:/a//b/", "file:/a/b"),
        ("FILE:/a", "file:/a"),
        ("/a/b/", "file:/a/b"),
        ("/", "file:/"),
        ("file:/a b/%20/ü", "file:/a b/%20/ü"),
        ("s3a://bucket/a//b/", "s3a://bucket/a/b"),
        ("s3a://bucket", "s3a://bucket"),
        ("hdfs://host:8020/x", "hdfs://host:8020/x"),
    ],
)
def test_a_location_is_written_as_hadoop_prints_it(text: str, expected: str) -> None:
    assert hadoop_location(text) == expected
    assert hadoop_location(expected) == expected


@pytest.mark.parametrize("text", ["", "a/b", "file:a", "s3a:bucket"])
def test_what_is_no_absolute_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        hadoop_location(text)


def test_two_texts_of_one_place_are_the_same_and_a_text_of_none_is_never() -> None:
    assert same_location("file:///a/", "/a")
    assert not same_location("/a", "/b")
    assert not same_location("a", "a")
