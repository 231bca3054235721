"""4 Records to parquet files and back; the columns are derived from the record's own fields."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gate.errors import StorageError
from gate.observe.rows import Row

R = TypeVar("R", bound=Row)

SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def schema(model: type[Row]) -> pa.Schema:
    """One column a field; the record's name is in the file's metadata, so that a foreign file is recognised."""
    columns = [pa.field(name, *_column(field.annotation)) for name, field in model.model_fields.items()]
    return pa.schema(columns, metadata={"record": model.__name__})


def to_bytes(model: type[R], rows: Sequence[R]) -> bytes:
    table = pa.Table.from_pylist([row.model_dump(mode="json") for row in rows], schema=schema(model))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def read(model: type[R], path: Path) -> tuple[R, ...]:
    """
    Raises:
        StorageError: missing, not parquet, another record, or columns of another version; one line.
    """
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise StorageError(f"no file {path}", hint="the run is incomplete or was moved in part") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:  # bytes of no known tool can raise any
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"{path} cannot be read as parquet: {first}", hint="restore it or run again") from error
    record = (table.schema.metadata or {}).get(b"record", b"nothing").decode(errors="replace")
    if record != model.__name__:
        raise StorageError(f"{path} holds {record} records", expected=f"{model.__name__} written by gate")
    unknown = [name for name in table.column_names if name not in model.model_fields]
    if unknown:
        raise StorageError(
            f"{path} has a column {unknown[0]!r} unknown to this version", hint="read it with the version that wrote it"
        )
    expected = schema(model)
    for name in table.column_names:
        found, ours = table.schema.field(name).type, expected.field(name).type
        if found != ours:  # reading on would turn "7" into 7
            raise StorageError(f"{path}: {name} is {found}", expected=f"{ours}", hint="it was not written by gate")
    try:
        return tuple(model.model_validate(row) for row in table.to_pylist())
    except ValueError as error:
        if not isinstance(error, ValidationError):  # text that is not UTF-8
            raise StorageError(f"{path} cannot be read: {error}", hint="restore it or run again") from error
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        raise StorageError(f"{path}: {where}: {wrong['msg']}", hint="it was written by another version") from error


def _column(annotation: Any) -> tuple[pa.DataType, bool]:
    """(Arrow type, nullable) of a field's annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (option for option in arguments if option is not type(None))
        return _column(inner)[0], True
    if origin is tuple:
        return pa.list_(_column(arguments[0])[0]), False
    if origin is Literal:
        return pa.string(), False
    if issubclass(annotation, enum.StrEnum):
        return pa.string(), False
    if issubclass(annotation, Row):
        return pa.struct([pa.field(name, *_column(f.annotation)) for name, f in annotation.model_fields.items()]), False
    return SCALARS[annotation], False
