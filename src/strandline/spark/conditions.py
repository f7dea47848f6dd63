"""Bounds of columns that a Spark condition implies, so that a scan reads fewer files.

Spark parses the condition: in its analyzed form, names are resolved and literals are cast to the
types of their columns. Bounds are taken from each part that must be true (the operands of AND) and
that compares a column with constants or with NULL. All other parts imply no bounds; Spark filters
the rows anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_float
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from strandline.metastore.interface import ColumnBounds
from strandline.model.identifiers import normalize
from strandline.spark.footers import canonical_text, following

Expression = Any  # an expression of Catalyst, in the JVM

_EPOCH = datetime(1970, 1, 1)
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_COLUMNS = ("AttributeReference", "CommonExpressionRef")
_WHOLE_NUMBERS = ("byte", "short", "integer", "long")
_CONSTANTS = ("Literal", "Cast")
"""Function calls are no constants: `now()` has another value when the rows are read."""
_BETWEEN = "\0"
"""It separates the values of a list. A list of texts that contain it implies no bounds."""
_COMPARISONS = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "EqualTo": "=",
}


def implied_bounds(
    rows: DataFrame, condition: str | Column, column_ids: Mapping[str, int]
) -> tuple[ColumnBounds, ...]:
    """The bounds of columns of ``rows`` that ``condition`` implies.

    ``column_ids`` are by normalized name.

    Raises `pyspark.errors.AnalysisException` if it is not a condition on ``rows``.
    """
    filtered = rows.filter(condition)
    plan = getattr(filtered, "_jdf", None)
    if plan is None:  # a Spark Connect session does not expose its plans
        _ = filtered.schema  # analyzes the condition, which is not done before
        return ()
    analyzed = plan.queryExecution().analyzed()
    if analyzed.nodeName() != "Filter":
        return ()
    return tuple(_bounds(analyzed.condition(), column_ids))


def _bounds(
    expression: Expression, column_ids: Mapping[str, int], shared: Expression = None
) -> Iterator[ColumnBounds]:
    """The bounds that a condition implies; ``shared`` is its common expression, if it has one."""
    name = _class(expression)
    if name == "And":
        yield from _bounds(expression.left(), column_ids, shared)
        yield from _bounds(expression.right(), column_ids, shared)
    elif name == "Between":
        yield from _bounds(expression.replacement(), column_ids)
    elif name == "With" and expression.defs().size() == 1:
        common = expression.defs().apply(0).child()
        yield from _bounds(expression.child(), column_ids, common)
    elif name in _COMPARISONS:
        yield from _compared(expression, column_ids, shared)
    elif name == "In":
        column_id = _column_id(expression.value(), column_ids)
        constants = _constants(expression.list())
        if column_id is not None and constants:
            lowest, highest = (end(constants, key=attrgetter("value")) for end in (min, max))
            values = tuple(constant.text for constant in constants)
            yield ColumnBounds(column_id, lowest.text, highest.text, values=values)
    elif name == "Not":
        yield from _excluded(expression.child(), column_ids)
    elif name in ("IsNull", "IsNotNull"):
        column_id = _column_id(expression.child(), column_ids)
        if column_id is not None:
            yield ColumnBounds(column_id, null=name == "IsNull")
    elif name == "EqualNullSafe":
        column_id = _column_id(expression.left(), column_ids)
        constant = None if column_id is None else _constant(expression.right())
        if column_id is not None and constant is not None:
            yield ColumnBounds(column_id, constant.text, constant.text)
        elif column_id is not None and _is_null(expression.right()):
            yield ColumnBounds(column_id, null=True)
    elif name in ("StartsWith", "Like"):
        column_id = _column_id(expression.left(), column_ids)
        constant = None if column_id is None else _constant(expression.right())
        if column_id is not None and constant is not None:
            prefix = constant.text
            if name == "Like":
                prefix = re.split(f"[%_{re.escape(expression.escapeChar())}]", prefix)[0]
            yield ColumnBounds(column_id, prefix, following(prefix))


def _compared(
    expression: Expression, column_ids: Mapping[str, int], shared: Expression
) -> Iterator[ColumnBounds]:
    """The bounds that a comparison with a constant implies."""
    left, right = expression.left(), expression.right()
    comparison = _COMPARISONS[_class(expression)]
    if _class(right) in _COLUMNS:
        left, right, comparison = right, left, _FLIPPED[comparison]
    if _class(left) == "CommonExpressionRef":
        left = shared
    column_id = _column_id(left, column_ids)
    # A bound is inclusive. So for an exclusive comparison take the next value, if there is one.
    step = {">": 1, "<": -1}.get(comparison, 0)
    constant = None if column_id is None else _constant(right, step=step)
    if column_id is not None and constant is not None:
        lower = constant.text if comparison in (">", ">=", "=") else None
        upper = constant.text if comparison in ("<", "<=", "=") else None
        yield ColumnBounds(column_id, lower, upper)


def _excluded(expression: Expression, column_ids: Mapping[str, int]) -> Iterator[ColumnBounds]:
    """The bounds implied by a condition that is neither true nor NULL."""
    name = _class(expression)
    if name == "EqualTo":
        column_id, constants = None, []
        for column, other in (
            (expression.left(), expression.right()),
            (expression.right(), expression.left()),
        ):
            if column_id is None:
                column_id, constant = _column_id(column, column_ids), _constant(other)
                constants = [] if constant is None else [constant]
    elif name == "In":
        column_id = _column_id(expression.value(), column_ids)
        constants = _constants(expression.list())
    else:
        return
    if column_id is not None and constants:
        yield ColumnBounds(column_id, without=tuple(constant.text for constant in constants))


def _constants(expressions: Expression) -> list[_Constant]:
    """The values of a list of constants; empty if any of them is NULL or not a constant.

    In a few calls of the JVM for the whole list: lists have thousands of values.
    """
    from pyspark import SparkContext  # a client of Spark Connect alone has none

    jvm: Any = SparkContext._jvm
    array = jvm.org.apache.spark.sql.catalyst.expressions.CreateArray(expressions, False)
    of_elements = array.dataType().elementType()
    read_write = _TYPES.get(_name_of(of_elements))
    classes = {node["class"].rpartition(".")[2] for node in json.loads(array.toJSON())}
    if read_write is None or not classes <= {"CreateArray", *_CONSTANTS}:
        return []
    evaluated = _evaluated(array)
    if evaluated is None:
        return []
    values = evaluated.toSeq(of_elements)
    texts = values.mkString(_BETWEEN).split(_BETWEEN)
    if values.contains(None) or len(texts) != values.size():
        return []
    constants = [_read(text, *read_write) for text in texts]
    not_null = [constant for constant in constants if constant is not None]
    return not_null if len(not_null) == len(constants) else []


def _is_null(expression: Expression) -> bool:
    while _class(expression) == "Cast":
        expression = expression.child()
    return _class(expression) == "Literal" and expression.value() is None


def _name_of(data_type: Any) -> str:
    return str(data_type.typeName()).partition("(")[0]


def _class(expression: Expression) -> str:
    return str(expression.nodeName())


def _column_id(expression: Expression, column_ids: Mapping[str, int]) -> int | None:
    if expression is None:
        return None
    while _class(expression) == "Cast" and expression.dataType().equals(
        expression.child().dataType()
    ):
        expression = expression.child()
    if _class(expression) != "AttributeReference":
        return None
    return column_ids.get(normalize(expression.name()))  # it has the case that the user wrote


@dataclass(frozen=True, slots=True)
class _Constant:
    """A value that can be compared with others of its type, and its text in statistics."""

    value: Any
    text: str


def _constant(expression: Expression, *, step: int = 0) -> _Constant | None:
    """The value of a constant; None for NULL, for an unsupported type, and for other expressions.

    ``step`` is added to a value of an integral, date or time type.
    """
    inner = expression
    while _class(inner) == "Cast":
        inner = inner.child()
    read_write = _TYPES.get(_name_of(expression.dataType()))
    if read_write is None or _class(inner) not in _CONSTANTS:
        return None
    constant = _evaluated(expression)
    return None if constant is None else _read(constant, *read_write, step=step)


def _evaluated(expression: Expression) -> Any:
    """The value of an expression without columns; None for NULL, and if it has no value."""
    from py4j.protocol import Py4JJavaError  # a client of Spark Connect may have no py4j

    try:
        return expression.eval(None)
    except (Py4JJavaError, PySparkException):
        return None  # for example a text that is not a number; Spark reports it at the read


def _read(
    constant: Any, read: Callable[[Any], Any], write: Callable[[Any], str | None], *, step: int = 0
) -> _Constant | None:
    value = read(constant) + step if read is int else read(constant)
    text = write(value)
    return None if text is None else _Constant(value, text)


def _days(value: int) -> str | None:
    ordinal = date(1970, 1, 1).toordinal() + value
    return date.fromordinal(ordinal).isoformat() if 0 < ordinal <= date.max.toordinal() else None


def _local_time(micros: int) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds")


def _time(micros: int) -> str | None:
    text = _local_time(micros)
    return None if text is None else f"{text}Z"


def _single(value: Any) -> float:
    """A FLOAT comes as its shortest text, 0.1, but statistics have its value: 0.10000000149…"""
    return c_float(float(value)).value


def _float(value: float) -> str | None:
    return None if value != value else repr(value)


def _text(value: str) -> str | None:
    """The text; None if it may be invalid UTF-8, since the JVM replaces such bytes by U+FFFD."""
    return None if "\ufffd" in value else value


_TYPES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], str | None]]] = {
    **dict.fromkeys(_WHOLE_NUMBERS, (int, str)),
    "float": (_single, _float),
    "double": (float, _float),
    "decimal": (lambda constant: Decimal(str(constant)), canonical_text),
    "boolean": (lambda constant: str(constant).lower() == "true", canonical_text),
    "date": (int, _days),
    "timestamp": (int, _time),
    "timestamp_ntz": (int, _local_time),
    "string": (str, _text),
}
"""How the values of a type, or their texts, are read from the JVM; how statistics write them."""
