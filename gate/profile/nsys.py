"""4 Reads an nsys SQLite export. Its schema carries no promise, so tables and columns are looked up before use.

Tables are created lazily: a table that is missing means that nothing of its kind was recorded. What differs between
versions and is asked for here: `graphNodeId` on kernels (2021.5 and later), `graphId` beside it, `memoryBandwidth` in
TARGET_INFO_GPU, and CUPTI_ACTIVITY_KIND_GRAPH_TRACE, where a whole CUDA graph is one row; 2023.4 has no such table and
exports a graph traced as a whole nowhere. Source: the exporter's own schema pages (docs.nvidia.com/nsight-systems,
nsys-exporter/exported_data), PRAGMA table_info, and exports of 2023.4.4 (tests/gate/profile/fixtures).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gate.errors import StorageError
from gate.profile.activity import Activity, Trace, shape, summed
from gate.profile.rows import Level

KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
STRINGS, RUNTIME, GPUS, EXPORT = "StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_GPU", "META_DATA_EXPORT"
RANGES = "NVTX_EVENTS"
GRAPH_LAUNCHES = "cu%GraphLaunch%"
"""cudaGraphLaunch_v10000, cuGraphLaunch_ptsz: calls of the runtime's and of the driver's interface."""
NAMES = ("demangledName", "shortName", "mangledName", "name")
"""The first of these that a version has names the kernel; the demangled one carries the template arguments."""
NEEDED = {KERNELS: ("start", "end"), STRINGS: ("id", "value")}
DECODE = "decode "
"""How the engine's ranges of steps that only decode begin (engine/ranges.py)."""
COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUpti_ActivityMemcpyKind."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Table -> its columns, as this export has them."""

    tables: dict[str, tuple[str, ...]]

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def column(self, table: str, name: str) -> str:
        """The column, or NULL where this version lacks it."""
        return f'"{name}"' if self.has(table, name) else "NULL"


def read(path: Path) -> Trace:
    """
    Raises:
        StorageError: no SQLite file, or one whose kernel table lacks what is needed; one line.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            schema = _schema(db)
            _check(schema, path)
            level = _level(db, schema)
            kernels, busy_us, idle_us = summed(_activities(db, schema))
            name, bandwidth = _device(db, schema)
            steps = sum(text.startswith(DECODE) for text in _ranges(db, schema)) or None
            return Trace(
                kernels=kernels,
                level=level,
                busy_us=busy_us if kernels else None,
                idle_us=idle_us if kernels else None,
                tool=_tool(db, schema),
                device=name,
                bandwidth_bytes_per_s=bandwidth,
                decode_steps=steps,
            )
    except sqlite3.Error as error:
        raise StorageError(
            f"{path} cannot be read as an nsys export: {error}", hint="export it again: nsys export --type=sqlite"
        ) from error


def _schema(db: sqlite3.Connection) -> Schema:
    names = [str(row[0]) for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return Schema({n: tuple(str(row[1]) for row in db.execute(f'PRAGMA table_info("{n}")')) for n in names})


def _check(schema: Schema, path: Path) -> None:
    """A kernel table may be missing (a trace at graph level has none); one that is there must be readable."""
    if not schema.has(EXPORT) and not schema.has(STRINGS):
        raise StorageError(f"{path} is no nsys export: it has neither {EXPORT} nor {STRINGS}")
    if not schema.has(KERNELS):
        return
    for table, columns in NEEDED.items():
        missing = [column for column in columns if not schema.has(table, column)]
        if missing:
            raise StorageError(
                f"{path}: {table} has no column {missing[0]}",
                expected=", ".join(columns),
                hint="this nsys writes another schema: gate/profile/nsys.py has to learn it",
            )
    if not any(schema.has(KERNELS, name) for name in NAMES):
        raise StorageError(f"{path}: {KERNELS} has no name column", expected=" or ".join(NAMES))


def _level(db: sqlite3.Connection, schema: Schema) -> Level:
    """graph as soon as one graph was recorded as a whole: its kernels are in no table."""
    if (schema.has(GRAPHS) and _count(db, GRAPHS)) or _graphs_without_nodes(db, schema):
        return "graph"
    return "node" if schema.has(KERNELS) and _count(db, KERNELS) else "none"


def _graphs_without_nodes(db: sqlite3.Connection, schema: Schema) -> bool:
    """Whether graphs were launched and no kernel belongs to one: all that 2023.4 shows of a graph traced as a whole."""
    if not schema.has(RUNTIME, "nameId"):
        return False
    if schema.has(KERNELS):
        if not schema.has(KERNELS, "graphNodeId"):
            return False  # before 2021.5: graphs were never traced as a whole
        if db.execute(f"SELECT 1 FROM {KERNELS} WHERE graphNodeId IS NOT NULL LIMIT 1").fetchone():
            return False
    query = f"SELECT 1 FROM {RUNTIME} r JOIN {STRINGS} s ON s.id = r.nameId WHERE s.value LIKE ? LIMIT 1"
    return db.execute(query, (GRAPH_LAUNCHES,)).fetchone() is not None


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def _activities(db: sqlite3.Connection, schema: Schema) -> Iterator[Activity]:
    if schema.has(KERNELS):
        name = next(column for column in NAMES if schema.has(KERNELS, column))
        sizes = ", ".join(f"k.{c}" if (c := schema.column(KERNELS, n)) != "NULL" else c for n in SIZES)
        query = (
            f'SELECT k.start, k."end", COALESCE(s.value, k."{name}"), {sizes} FROM {KERNELS} k '
            f'LEFT JOIN {STRINGS} s ON s.id = k."{name}"'
        )
        for start, end, text, *dims in db.execute(query):
            yield Activity(start, end, str(text), shape(*dims[:3]), shape(*dims[3:]))
    if schema.has(COPIES, "start", "end"):
        query = f'SELECT start, "end", {schema.column(COPIES, "copyKind")} FROM {COPIES}'
        for start, end, kind in db.execute(query):
            yield Activity(start, end, f"Memcpy {COPY_KINDS.get(kind, 'other')}")
    if schema.has(FILLS, "start", "end"):
        for start, end in db.execute(f'SELECT start, "end" FROM {FILLS}'):
            yield Activity(start, end, "Memset")


SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


def _ranges(db: sqlite3.Connection, schema: Schema) -> list[str]:
    """Texts of the NVTX ranges that ended; a version, or a library, has them in the event or among the strings."""
    if not schema.has(RANGES, "start", "end"):
        return []
    text, by_id = schema.column(RANGES, "text"), schema.has(RANGES, "textId")
    own = f"e.{text}" if text != "NULL" else "NULL"
    value, join = (f"COALESCE({own}, s.value)", f"LEFT JOIN {STRINGS} s ON s.id = e.textId") if by_id else (own, "")
    found = db.execute(f'SELECT {value} FROM {RANGES} e {join} WHERE e."end" IS NOT NULL ORDER BY e.start')
    return [str(row[0]) for row in found if row[0] is not None]


def _device(db: sqlite3.Connection, schema: Schema) -> tuple[str | None, float | None]:
    """(name, nominal bytes/s) of the first GPU in the export."""
    if not schema.has(GPUS, "name"):
        return None, None
    row = db.execute(f"SELECT name, {schema.column(GPUS, 'memoryBandwidth')} FROM {GPUS}").fetchone()
    if row is None:
        return None, None
    return str(row[0]), float(row[1]) if row[1] else None


def _tool(db: sqlite3.Connection, schema: Schema) -> str:
    if not schema.has(EXPORT, "name", "value"):
        return "nsys"
    about = {str(name): str(value) for name, value in db.execute(f"SELECT name, value FROM {EXPORT}")}
    product = about.get("EXPORT_PRODUCT_VERSION", "")
    version = about.get("EXPORT_SCHEMA_VERSION", "")
    return " ".join(["nsys", *([product] if product else []), *([f"(schema {version})"] if version else [])])
