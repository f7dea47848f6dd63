"""Which type changes are allowed, and how struct fields keep their ids through a change.

A type change rewrites no data file. Spark reads older files with the new type. So a change is
allowed only if Spark's Parquet reader, vectorized or not, returns every old value unchanged as a
value of the new type:

| from | to |
| --- | --- |
| tinyint, smallint, int | a wider integer, double, decimal with at least 10 integer digits |
| bigint | decimal with at least 20 integer digits |
| float | double |
| decimal(p,s) | decimal with at least as many integer digits and at least as many decimals |
| date | timestamp_ntz |
| char(n), varchar(n) | the same kind or varchar with at least n characters, string |
| void | any type: void has no values |
| struct | fields moved, renamed (same id), changed by these rules, or added and nullable |

A change may make a part nullable, but not the reverse. The integer digits of a decimal must cover
the whole physical type (int32, even for tinyint), because the reader checks that type. Changes
compose: if two steps are allowed, the direct change is too. So files of any age can be read with
any later type.

Two changes are refused although they lose no bit: a change of collation, which would change which
values are equal in keys and partitions; and timestamp to timestamp_ntz, which depends on a time
zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from strandline.errors import IllegalChange, InvalidInput, cut
from strandline.model.identifiers import check_column_name, normalize
from strandline.model.type_text import simple_string
from strandline.model.types import (
    BIGINT,
    DATE,
    DEFAULT_COLLATION,
    DOUBLE,
    FLOAT,
    INTEGRAL_TYPES,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    AtomicType,
    CharType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    depth_of,
    ids_in,
    walk,
    with_parts,
)

_INT_DIGITS = 10
_BIGINT_DIGITS = 20


def check_field_names(data_type: DataType, *, column: str) -> None:
    """Check the names of all struct fields in the type of ``column``.

    Raises `InvalidName` for an invalid name, `InvalidInput` for a duplicate in one struct, and
    `InvalidType` if the type or one inside it is no type.
    """
    simple_string(data_type)  # refuses a text in place of a type
    if not depth_of(data_type):
        return
    for inner in walk(data_type):
        if not isinstance(inner, StructType):
            continue
        seen: set[str] = set()
        for entry in inner.fields:
            check_column_name(entry.name, f"field of column {column}")
            if normalize(entry.name) in seen:
                raise InvalidInput(
                    f"duplicate field {entry.name!r} in a struct of column {column!r}"
                )
            seen.add(normalize(entry.name))


def assign_ids(data_type: DataType, next_id: int) -> tuple[DataType, int]:
    """Return the type with an id on every struct field, and the next free id.

    Existing ids stay. New ids are assigned in the order of the text, outer fields before inner
    ones, starting at ``next_id`` or after the highest existing id, whichever is higher.
    """
    if not depth_of(data_type):
        return data_type, next_id
    free_ids = count(max(next_id, max(ids_in(data_type), default=-1) + 1))
    return _assigned(data_type, free_ids), next(free_ids)


def carry_ids(old: DataType, new: DataType, next_id: int) -> tuple[DataType, int]:
    """Return ``new`` with the field ids from ``old``, and the next free id.

    A new field continues an old one if it has the old field's id (so a rename keeps the id), else
    if it has the same name, first with and then without regard to case. Other fields get new ids.
    """
    return assign_ids(_carried(old, new), next_id)


def check_change(old: DataType, new: DataType) -> None:
    """Raise `IllegalChange` unless every value of ``old`` can be read as ``new``."""
    _check(old, new, "")


def match_fields(old: StructType, new: StructType) -> dict[int, StructField]:
    """Return which old field each new one continues: position in ``new`` → field of ``old``.

    Fields match by id if the new field has an id of the old struct, else by name.
    """
    by_id = {f.field_id: f for f in old.fields if f.field_id is not None}
    matched: dict[int, StructField] = {}
    for position, entry in enumerate(new.fields):
        if entry.field_id in by_id:
            matched[position] = by_id.pop(entry.field_id)
    matched_ids = {id(entry) for entry in matched.values()}
    unmatched_fields = [entry for entry in old.fields if id(entry) not in matched_ids]
    for key in (str, normalize):
        by_name: dict[str, list[StructField]] = {}
        for entry in unmatched_fields:
            by_name.setdefault(key(entry.name), []).append(entry)
        for position, entry in enumerate(new.fields):
            candidates = by_name.get(key(entry.name))
            if position not in matched and candidates:
                matched[position] = candidates.pop(0)
        matched_ids = {id(entry) for entry in matched.values()}
        unmatched_fields = [entry for entry in unmatched_fields if id(entry) not in matched_ids]
    return matched


def _assigned(data_type: DataType, free_ids: Iterator[int]) -> DataType:
    if isinstance(data_type, StructType):
        # The fields of a struct get their ids before the fields inside of them.
        numbered = (
            replace(entry, field_id=next(free_ids)) if entry.field_id is None else entry
            for entry in data_type.fields
        )
        data_type = StructType(tuple(numbered))
    return with_parts(data_type, lambda inner: _assigned(inner, free_ids))


def _carried(old: DataType | None, new: DataType) -> DataType:
    match new:
        case ArrayType():
            below = old.element if isinstance(old, ArrayType) else None
            return replace(new, element=_carried(below, new.element))
        case MapType():
            old_map = old if isinstance(old, MapType) else None
            return replace(
                new,
                key=_carried(old_map.key if old_map else None, new.key),
                value=_carried(old_map.value if old_map else None, new.value),
            )
        case StructType():
            matching_fields = match_fields(old, new) if isinstance(old, StructType) else {}
            fields = []
            for position, entry in enumerate(new.fields):
                before = matching_fields.get(position)
                fields.append(
                    replace(
                        entry,
                        type=_carried(before.type if before else None, entry.type),
                        field_id=before.field_id if before else None,
                    )
                )
            return StructType(tuple(fields))
    return new


def _check(old: DataType, new: DataType, path: str) -> None:
    match old, new:
        case ArrayType(), ArrayType():
            _check(old.element, new.element, f"{path}.element")
            if old.contains_null and not new.contains_null:
                raise _illegal(old, new, path, "elements may be NULL and must stay so")
        case MapType(), MapType():
            _check(old.key, new.key, f"{path}.key")
            _check(old.value, new.value, f"{path}.value")
            if old.value_contains_null and not new.value_contains_null:
                raise _illegal(old, new, path, "values may be NULL and must stay so")
        case StructType(), StructType():
            _check_struct(old, new, path)
        case _:
            if not _widens(old, new):
                raise _illegal(old, new, path, _reason(old, new))


def _check_struct(old: StructType, new: StructType, path: str) -> None:
    matching_fields = match_fields(old, new)
    kept_ids = {id(entry) for entry in matching_fields.values()}
    for entry in old.fields:
        if id(entry) not in kept_ids:
            raise _illegal(old, new, path, f"the field {entry.name!r} is missing")
    for position, entry in enumerate(new.fields):
        before = matching_fields.get(position)
        if before is None:
            if not entry.nullable:
                raise _illegal(old, new, path, f"the added field {entry.name!r} must be nullable")
            continue
        if before.nullable and not entry.nullable:
            raise _illegal(old, new, path, f"the field {entry.name!r} must stay nullable")
        _check(before.type, entry.type, f"{path}.{before.name}")


def _widens(old: DataType, new: DataType) -> bool:
    match old, new:
        case StringType(before), StringType(after):
            return (before or DEFAULT_COLLATION) == (after or DEFAULT_COLLATION)
        case _ if old in (new, VOID):
            return True
        case AtomicType(), DecimalType(precision, scale) if old in INTEGRAL_TYPES:
            digits = _BIGINT_DIGITS if old == BIGINT else _INT_DIGITS
            return precision - scale >= digits
        case DecimalType(), DecimalType(precision, scale):
            return scale >= old.scale and precision - scale >= old.precision - old.scale
        case CharType(length), CharType(longer) | VarcharType(longer):
            return longer >= length
        case VarcharType(length), VarcharType(longer):
            return longer >= length
        case CharType() | VarcharType(), StringType(collation):
            return (collation or DEFAULT_COLLATION) == DEFAULT_COLLATION
        case AtomicType(), AtomicType():
            return _widens_atomic(old, new)
    return False


def _widens_atomic(old: AtomicType, new: AtomicType) -> bool:
    if old in INTEGRAL_TYPES:
        if new in INTEGRAL_TYPES:
            return INTEGRAL_TYPES.index(new) > INTEGRAL_TYPES.index(old)
        return new == DOUBLE and old != BIGINT
    return (old, new) in ((FLOAT, DOUBLE), (DATE, TIMESTAMP_NTZ))


def _reason(old: DataType, new: DataType) -> str:
    match old, new:
        case DecimalType(), DecimalType():
            return "neither the digits before the decimal point nor those after it may become fewer"
        case AtomicType(), DecimalType() if old in INTEGRAL_TYPES:
            digits = _BIGINT_DIGITS if old == BIGINT else _INT_DIGITS
            return f"the decimal needs at least {digits} digits before the point"
        case CharType() | VarcharType(), CharType() | VarcharType():
            return "the length may not become smaller, and varchar cannot become char"
        case StringType(), StringType():
            return "the collation may not change"
        case _ if new == DOUBLE and old == BIGINT:
            return "double cannot hold every bigint"
    return "stored values cannot be read as the new type"


def _illegal(old: DataType, new: DataType, path: str, reason: str) -> IllegalChange:
    where = f" at {path.lstrip('.')}" if path else ""
    return IllegalChange(
        f"cannot change the type{where} from {_shown(old)} to {_shown(new)}: {reason}"
    )


def _shown(data_type: DataType) -> str:
    return cut(simple_string(data_type), 200)
