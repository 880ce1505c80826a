"""A Spark DDL schema, such as "src string, n bigint NOT NULL, ts timestamp", as an Arrow schema.

Sources declare their rows the way Spark users do, yet a source is read and checked where no Spark runs.
So the usual part of Spark's grammar is parsed here, by recursive descent over a token list:

    fields := field (',' field)*
    field  := name [':'] type ['NOT' 'NULL'] ['COMMENT' text]
    type   := word ['(' number (',' number)* ')'] | 'array' '<' type '>' | 'map' '<' type ',' type '>'
            | 'struct' '<' [fields] '>'

`timestamp` is an instant: microseconds in UTC, as in Spark with its session time zone set to UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

from understudy.flow.errors import FlowError

TIMESTAMP = pa.timestamp("us", tz="UTC")

_SIMPLE: dict[str, Callable[[], pa.DataType]] = {
    "string": pa.string,
    "boolean": pa.bool_,
    "tinyint": pa.int8,
    "byte": pa.int8,
    "smallint": pa.int16,
    "short": pa.int16,
    "int": pa.int32,
    "integer": pa.int32,
    "bigint": pa.int64,
    "long": pa.int64,
    "float": pa.float32,
    "real": pa.float32,
    "double": pa.float64,
    "binary": pa.binary,
    "date": pa.date32,
    "timestamp": lambda: TIMESTAMP,
    "timestamp_ltz": lambda: TIMESTAMP,
    "timestamp_ntz": lambda: pa.timestamp("us"),
}
_KNOWN = [*_SIMPLE, "decimal(p, s)", "array<...>", "map<..., ...>", "struct<name: ..., ...>"]
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_DECIMAL_DIGITS_MAX = 38


@lru_cache(maxsize=256)
def parse_schema(ddl: str) -> pa.Schema:
    """The Arrow schema that `ddl` declares. A FlowError names the field that is wrong."""
    fields = _Parser(ddl).all_fields()
    return pa.schema(fields)


class _Parser:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._split(ddl)
        self._next = 0
        self._path: list[str] = []

    def all_fields(self) -> list[pa.Field]:
        fields = self._fields()
        if self._peek():
            raise self._error(f"expected ',' or the end, found {self._peek()!r}")
        return fields

    def _split(self, ddl: str) -> list[str]:
        tokens: list[str] = []
        at, end = 0, len(ddl.rstrip())
        while at < end:
            match = _TOKEN.match(ddl, at)
            if match is None:
                raise FlowError(f"schema {ddl!r}: cannot read it from {ddl[at:].strip()[:20]!r} on.")
            tokens.append(match[0].strip())
            at = match.end()
        if not tokens:
            raise FlowError('A schema is empty. Write its fields, such as "name string, ts timestamp".')
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _accept(self, word: str) -> bool:
        if self._peek().upper() != word:
            return False
        self._next += 1
        return True

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._error(f"expected {mark!r}, found {self._peek() or 'the end'!r}")

    def _error(self, what: str) -> FlowError:
        field = f", field {'.'.join(self._path)!r}" if self._path else ""
        return FlowError(f"schema {self._ddl!r}{field}: {what}.")

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._accept(","):
            fields.append(self._field())
        names = [field.name.lower() for field in fields]
        for field in fields:
            # Spark resolves names without regard to case, so these two would be ambiguous there.
            if names.count(field.name.lower()) > 1:
                raise self._error(f"the name {field.name!r} appears twice")
        return fields

    def _field(self) -> pa.Field:
        token = self._take()
        if token.startswith("`"):
            name = token[1:-1].replace("``", "`")
        elif re.fullmatch(r"\w+", token):
            name = token
        else:
            raise self._error(f"expected a field's name, found {token or 'the end'!r}")
        self._path.append(name)
        self._accept(":")
        kind = self._type()
        nullable = True
        if self._accept("NOT"):
            self._expect("NULL")
            nullable = False
        if self._accept("COMMENT") and not self._take().startswith(("'", '"')):
            raise self._error("COMMENT needs a quoted text")
        if self._peek() not in ("", ",", ">"):
            raise self._error(f"expected ',' after its type, found {self._peek()!r}")
        self._path.pop()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        word = self._take()
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("array", "map", "struct"):
            self._expect("<")
            kind = self._nested(name)
            self._expect(">")
            return kind
        if not word or not re.fullmatch(r"\w+", word):
            raise self._error(f"expected a type, found {word or 'the end'!r}")
        raise self._error(f"the type {word!r} is not known here. Known are {', '.join(_KNOWN)}")

    def _nested(self, name: str) -> pa.DataType:
        if name == "array":
            return pa.list_(self._type())
        if name == "map":
            key = self._type()
            self._expect(",")
            return pa.map_(key, self._type())
        return pa.struct([] if self._peek() == ">" else self._fields())

    def _decimal(self) -> pa.DataType:
        numbers: list[int] = []
        if self._accept("("):
            numbers.append(self._number())
            if self._accept(","):
                numbers.append(self._number())
            self._expect(")")
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise self._error(
                f"decimal({precision}, {scale}) is not possible: 1 to {_DECIMAL_DIGITS_MAX} digits, "
                "and no more than those after the point"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdecimal():
            raise self._error(f"expected a number, found {token or 'the end'!r}")
        return int(token)
