"""Rows that an older version of a fragment put out, in the columns of its output now.

Columns are matched by name. One that is gone is dropped, and a new one is null. A snapshot says the types of
its columns, so one whose type has changed was refused before (see `fitting`); here that is an error of ours.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from understudy.core.errors import require


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with the columns of `schema`; of several columns by one name, the first goes to the first."""
    if rows.schema.equals(schema):
        return rows
    places: dict[tuple[str, int], int] = {}
    for position, key in enumerate(_numbered(rows.schema)):
        places[key] = position
    columns, fields = [], []
    for key, field in zip(_numbered(schema), schema, strict=True):
        if key in places:
            column = rows.column(places[key])
            require(column.type == field.type, f"column {field.name} is {column.type}, not {field.type}")
            columns.append(column)
            fields.append(field.with_nullable(field.nullable or column.null_count > 0))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
            fields.append(field.with_nullable(True))
    return pa.table(columns, schema=pa.schema(fields))


def together(tables: list[pa.Table]) -> pa.Table:
    """Tables of the same columns one after the other. What may be null in one of them may be in all."""
    schema = tables[0].schema
    if all(table.schema.equals(schema) for table in tables):
        return pa.concat_tables(tables)
    nullable = [any(table.schema.field(i).nullable for table in tables) for i in range(len(schema))]
    loose = pa.schema([field.with_nullable(may) for field, may in zip(schema, nullable, strict=True)])
    return pa.concat_tables([pa.table(table.columns, schema=loose) for table in tables])


def _numbered(schema: pa.Schema) -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    keys = []
    for name in schema.names:
        keys.append((name, seen[name]))
        seen[name] += 1
    return keys
