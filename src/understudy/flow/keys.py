"""Key columns: by what rows are dealt out to the partitions of a fragment.

Rows that belong together must meet in one partition, from whichever input they come. So every input has all
of a fragment's key columns, and a column is of the same *kind* in all of them: types of one kind hash alike
where their values are equal. Floating-point columns cannot be keys: equal values have several forms (0.0 and
-0.0), and what one input rounds another may not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from understudy.flow.errors import FlowError
from understudy.flow.model import Fragment

#: What a key column can be, as users call it.
KINDS = ("string", "binary", "boolean", "integer", "date", "timestamp")


def key_kind(kind: pa.DataType) -> str | None:
    """Which of KINDS a column of this type is; None if rows cannot be dealt out by it."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "binary"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_signed_integer(kind):
        return "integer"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return "timestamp"
    return None


def require_keys(fragment: Fragment, columns: Mapping[str, pa.Schema]) -> None:
    """Raise a FlowError unless the inputs in `columns` can be dealt out alike. Others are passed over."""
    known = {name: columns[name] for name in fragment.inputs if name in columns}
    for key in fragment.partition_by:
        kinds = {name: _kind_in(fragment.name, key, name, schema) for name, schema in known.items()}
        for name, kind in kinds.items():
            first, first_kind = next(iter(kinds.items()))
            if kind != first_kind:
                raise FlowError(
                    f"fragment {fragment.name!r} is partitioned by {key!r}, which is {first_kind} in its "
                    f"input {first!r} but {kind} in its input {name!r}: equal rows would not meet. Cast one "
                    "of them, so that the inputs are partitioned alike."
                )


def _kind_in(fragment: str, key: str, name: str, schema: pa.Schema) -> str:
    # Spark takes names that differ only in case for the same.
    count = sum(column.lower() == key.lower() for column in schema.names)
    if key not in schema.names or count > 1:
        what = "does not have" if key not in schema.names else f"has {count} times"
        raise FlowError(
            f"fragment {fragment!r} is partitioned by {key!r}, which its input {name!r} {what}. It has the "
            f"columns {', '.join(schema.names)}. Name columns in partition_by that every input has once, or "
            f"add {key!r} to {name!r}."
        )
    kind = key_kind(schema.field(key).type)
    if kind is None:
        raise FlowError(
            f"fragment {fragment!r} is partitioned by {key!r}, which is {schema.field(key).type} in its "
            f"input {name!r}. Rows can be dealt out by columns of the kinds {', '.join(KINDS)}: name another "
            "column, or cast this one before."
        )
    return kind
