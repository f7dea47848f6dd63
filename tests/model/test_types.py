from __future__ import annotations

import copy
import pickle

import pytest

from strandline.errors import InvalidType
from strandline.model.types import (
    INT,
    MAX_DEPTH,
    STRING,
    ArrayType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    GeographyType,
    GeometryType,
    MapType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    YearMonthIntervalType,
    depth_of,
    walk,
)


def nested(levels: int) -> DataType:
    result: DataType = INT
    for level in range(levels):
        if level % 3 == 0:
            result = ArrayType(result)
        elif level % 3 == 1:
            result = MapType(STRING, result)
        else:
            result = StructType((StructField("a", result),))
    return result


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (DecimalType, (0, 0)),
        (DecimalType, (39, 0)),
        (DecimalType, (5, 6)),
        (DecimalType, (5, -1)),
        (CharType, (-1,)),
        (VarcharType, (2**31,)),
        (TimeType, (10,)),
        (GeometryType, (-1,)),
        (GeometryType, (2**31,)),
        (GeographyType, (0,)),
        (YearMonthIntervalType, ("month", "year")),
        (DayTimeIntervalType, ("second", "day")),
        (DayTimeIntervalType, ("year", "month")),
    ],
)
def test_parameters_out_of_range_are_refused(kind: type, arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidType):
        kind(*arguments)


def test_a_type_of_the_maximum_depth_can_be_compared_hashed_and_copied() -> None:
    deep, same = nested(MAX_DEPTH), nested(MAX_DEPTH)
    assert depth_of(deep) == MAX_DEPTH
    assert deep == same
    assert hash(deep) == hash(same)
    assert pickle.loads(pickle.dumps(deep)) == copy.deepcopy(deep) == deep
    assert len(list(walk(deep))) == MAX_DEPTH + 1 + sum(1 for i in range(MAX_DEPTH) if i % 3 == 1)


@pytest.mark.parametrize("around", ["array", "map", "struct"])
def test_a_type_beyond_the_maximum_depth_is_refused(around: str) -> None:
    deep = nested(MAX_DEPTH)
    with pytest.raises(InvalidType, match=f"{around} is nested 101 levels"):
        if around == "array":
            ArrayType(deep)
        elif around == "map":
            MapType(deep, INT)
        else:
            StructType((StructField("a", deep),))
