"""nsys exports of several layouts, one at graph level, and what is no export. All contents but one are synthetic.

Layouts: columns of CUPTI_ACTIVITY_KIND_KERNEL as the exporter's schema pages and public exports of those versions have
them, shortened to what tells versions apart.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gate.errors import StorageError
from gate.profile import nsys
from gate.profile.rows import TracedKernel

SIZES = "gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER"
HEAD = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER"
NAMED = "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, mangledName INTEGER"
LAYOUTS = {
    # No graph columns at all; no bandwidth of the GPU.
    "2020.5": (f"{HEAD}, demangledName INTEGER, shortName INTEGER, {SIZES}", ""),
    "2023.4": (
        f"{HEAD}, streamId INTEGER, {NAMED}, launchType INTEGER, {SIZES}, gridId INTEGER, graphNodeId INTEGER",
        "memoryBandwidth INTEGER",
    ),
    "2024.3": (
        f"{HEAD}, greenContextId INTEGER, streamId INTEGER, {NAMED}, {SIZES}, gridId INTEGER, graphNodeId INTEGER",
        "memoryBandwidth INTEGER",
    ),
    "2025.3": (
        f"{HEAD}, greenContextId INTEGER, streamId INTEGER, {NAMED}, {SIZES}, graphNodeId INTEGER, graphId INTEGER",
        "memoryBandwidth INTEGER",
    ),
    # Names without arguments, where the demangled ones were not written.
    "short names only": (f"{HEAD}, shortName INTEGER", ""),
}
GRAPH_TRACE = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
    "greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, "
    "graphExecId INTEGER)"
)


def write(path: Path, kernel_columns: str | None, gpu_columns: str = "", version: str = "2025.3.2.474") -> None:
    """Two launches of one kernel, 3 and 5 µs, the second beside a copy of 2 µs."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "void k<2>(int)"), (2, "k"), (3, "_Z1k")])
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', ?)", (version,))
        db.execute(f"CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT{', ' if gpu_columns else ''}{gpu_columns})")
        db.execute(f"INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200'{', 4800000000000' if gpu_columns else ''})")
        if kernel_columns is not None:
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({kernel_columns})")
            names = {"demangledName": 1, "shortName": 2, "mangledName": 3, "gridX": 132, "blockX": 256}
            known = [part.split()[0] for part in kernel_columns.split(",")]
            for start, end in ((1000, 4000), (10_000, 15_000)):
                row = [{"start": start, "end": end}.get(c, names.get(c, 1)) for c in known]
                db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row))})", row)
            db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, copyKind INTEGER)")
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (14000, 16000, 2)")
        db.commit()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_trace(layout: str, tmp_path: Path) -> None:
    kernels, gpu_columns = LAYOUTS[layout]
    write(tmp_path / "x.sqlite", kernels, gpu_columns)
    trace = nsys.read(tmp_path / "x.sqlite")
    short = layout == "short names only"
    assert trace.kernels == (
        TracedKernel(
            name="k" if short else "void k<2>(int)",
            grid="" if short else "132x1x1",
            block="" if short else "256x1x1",
            launches=2,
            us=8.0,
            own_us=8.0,
        ),
        TracedKernel(name="Memcpy DtoH", grid="", block="", launches=1, us=2.0, own_us=1.0),
    )
    assert trace.level == "node"
    assert trace.busy_us == pytest.approx(9.0)  # the copy overlaps the second launch by 1 µs
    assert (trace.device, trace.bandwidth_bytes_per_s) == ("NVIDIA H200", 4.8e12 if gpu_columns else None)
    assert trace.tool == "nsys 2025.3.2.474"


@pytest.mark.parametrize("with_kernels", [False, True])
def test_a_trace_at_graph_level_is_recognised(with_kernels: bool, tmp_path: Path) -> None:
    """Whether or not kernels outside the graph were recorded beside it."""
    path = tmp_path / "x.sqlite"
    write(path, LAYOUTS["2024.3"][0] if with_kernels else None)
    with closing(sqlite3.connect(path)) as db:
        db.execute(GRAPH_TRACE)
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (6000, 8000, 0, 1, 0, 7, 2, 1, 1, 1)")
        db.commit()
    assert nsys.read(path).level == "graph"


def test_an_empty_graph_table_is_no_graph(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    write(path, LAYOUTS["2024.3"][0])
    with closing(sqlite3.connect(path)) as db:
        db.execute(GRAPH_TRACE)
        db.commit()
    assert nsys.read(path).level == "node"


def test_no_kernel_at_all(tmp_path: Path) -> None:
    write(tmp_path / "x.sqlite", None)
    trace = nsys.read(tmp_path / "x.sqlite")
    assert (trace.level, trace.busy_us, trace.kernels) == ("none", None, ())


def test_a_renamed_column_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "x.sqlite", "startNs INTEGER, end INTEGER, demangledName INTEGER")
    with pytest.raises(StorageError, match="has no column start; expected start, end; this nsys writes another schema"):
        nsys.read(tmp_path / "x.sqlite")


def test_kernels_without_names_are_one_line(tmp_path: Path) -> None:
    write(tmp_path / "x.sqlite", f"{HEAD}, streamId INTEGER")
    with pytest.raises(StorageError, match="has no name column; expected demangledName or shortName"):
        nsys.read(tmp_path / "x.sqlite")


def test_what_is_no_export(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as db:
        db.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(StorageError, match="is no nsys export"):
        nsys.read(tmp_path / "other.sqlite")
    (tmp_path / "text.sqlite").write_text("report1.nsys-rep")
    with pytest.raises(StorageError, match="cannot be read as an nsys export"):
        nsys.read(tmp_path / "text.sqlite")
    with pytest.raises(StorageError, match="cannot be read as an nsys export"):
        nsys.read(tmp_path / "missing.sqlite")


def test_decode_steps_are_counted_by_text_and_by_string_id(tmp_path: Path) -> None:
    """Two that ended, one of them by string id; one still open, one of prefill, one of somebody else."""
    path = tmp_path / "x.sqlite"
    write(path, LAYOUTS["2025.3"][0])
    assert nsys.read(path).decode_steps is None
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO StringIds VALUES (9, 'decode 8')")
        db.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER)")
        rows = [(5, 9, "decode 1", None), (1, 4, None, 9), (9, None, "decode 1", None), (2, 3, "prefill 12", None)]
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)", [*rows, (7, 8, "layers 0-3", None)])
        db.commit()
    assert nsys.read(path).decode_steps == 2


@pytest.mark.parametrize(
    "columns", ["start INTEGER, end INTEGER, text TEXT", "start INTEGER, end INTEGER, textId INTEGER"]
)
def test_ranges_of_other_layouts(columns: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    write(path, LAYOUTS["2023.4"][0])
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO StringIds VALUES (9, 'decode 8')")
        db.execute(f"CREATE TABLE NVTX_EVENTS ({columns})")
        db.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, ?)", (9 if "textId" in columns else "decode 1",))
        db.commit()
    assert nsys.read(path).decode_steps == 1


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """An export that nsys 2023.4.4 wrote, of an engine without a GPU."""
    path = tmp_path / "real.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((Path(__file__).parent / "fixtures" / "nsys-2023.4.4-engine-cpu.sql").read_text())
        db.commit()
    return path


def add(path: Path, table: str, **values: object) -> None:
    """A row with 1 in whatever else the real table wants."""
    with closing(sqlite3.connect(path)) as db:
        wanted = {str(name): 1 for _, name, _, needed, *_ in db.execute(f"PRAGMA table_info({table})") if needed}
        row = wanted | values
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        db.commit()


def test_a_real_export(real: Path) -> None:
    """Ranges are in it by the id of their text; nine tokens are one prefill and eight steps of decoding."""
    trace = nsys.read(real)
    assert (trace.level, trace.kernels, trace.busy_us) == ("none", (), None)
    assert trace.decode_steps == 8
    assert trace.tool == "nsys 2023.4.4.54 (schema 3.7.2)"


@pytest.mark.parametrize("call", ["cudaGraphLaunch_v10000", "cuGraphLaunch"])
@pytest.mark.parametrize("outside", [False, True])
def test_graphs_that_the_version_exports_nowhere_are_missed(real: Path, call: str, outside: bool) -> None:
    """2023.4 has no table of whole graphs. Kernels outside of them would pass for the whole step."""
    add(real, "StringIds", id=900, value=call)
    add(real, "StringIds", id=901, value="k")
    add(real, "CUPTI_ACTIVITY_KIND_RUNTIME", nameId=900)
    if outside:
        add(real, "CUPTI_ACTIVITY_KIND_KERNEL", start=1000, end=4000, demangledName=901)
    assert nsys.read(real).level == "graph"
    add(real, "CUPTI_ACTIVITY_KIND_KERNEL", start=5000, end=6000, demangledName=901, graphNodeId=77)
    assert nsys.read(real).level == "node"


def test_kernels_without_a_graph_are_no_graph(real: Path) -> None:
    add(real, "StringIds", id=900, value="cudaLaunchKernel_v7000")
    add(real, "CUPTI_ACTIVITY_KIND_RUNTIME", nameId=900)
    add(real, "CUPTI_ACTIVITY_KIND_KERNEL", start=1000, end=4000, demangledName=900)
    assert nsys.read(real).level == "node"


def test_copies_and_fills_are_named_as_the_exporter_names_them(real: Path) -> None:
    with closing(sqlite3.connect(real)) as db:
        kinds = dict(db.execute("SELECT id, name FROM ENUM_CUDA_MEMCPY_OPER"))
    for kind in kinds:
        add(real, "CUPTI_ACTIVITY_KIND_MEMCPY", start=10_000 * kind, end=10_000 * kind + 2000, copyKind=kind)
    add(real, "CUPTI_ACTIVITY_KIND_MEMSET", start=500_000, end=503_000)
    found = {kernel.name: (kernel.launches, kernel.us) for kernel in nsys.read(real).kernels}
    assert found == {
        **{f"Memcpy {name}": (1, 2.0) for name in ("HtoD", "DtoH", "DtoD", "PtoP")},
        "Memcpy other": (10, 20.0),
        "Memset": (1, 3.0),
    }
    named = {name.removeprefix("CUDA_MEMCPY_KIND_").replace("TO", "to"): kind for kind, name in kinds.items()}
    assert {named[name]: name for name in ("HtoD", "DtoH", "DtoD", "PtoP")} == nsys.COPY_KINDS


def test_before_graphs_were_traced_as_a_whole_a_launch_of_one_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    write(path, LAYOUTS["2020.5"][0])
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, nameId INTEGER)")
        db.execute("INSERT INTO StringIds VALUES (9, 'cudaGraphLaunch_v10000')")
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 9)")
        db.commit()
    assert nsys.read(path).level == "node"


def test_an_export_of_little_says_little(tmp_path: Path) -> None:
    """Neither the tool's version nor a GPU; a range without a text is none of ours."""
    path = tmp_path / "100% mine? #1.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER)")
        db.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, NULL, NULL)")
        db.commit()
    trace = nsys.read(path)
    assert (trace.tool, trace.device, trace.bandwidth_bytes_per_s, trace.decode_steps) == ("nsys", None, None, None)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.7.2')")
        db.commit()
    assert nsys.read(path).tool == "nsys (schema 3.7.2)"
