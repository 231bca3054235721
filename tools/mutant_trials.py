"""What a fork of tools/mutants.py does: run the unchanged tests once, or those that a mutant has to fail."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from mutations import Mutant

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60
"""Of one test and of what comes before the first; an endless loop counts as noticed, a long list of tests does not."""
PYTEST = (
    *("-q", "-x", "--tb=no", "--assert=plain", "-o", "addopts=", "--import-mode=importlib", "--rootdir", str(ROOT)),
    *(f"-pno:{plugin}" for plugin in ("cacheprovider", "unraisableexception", "threadexception", "faulthandler")),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning", "-W", "ignore::pytest.PytestConfigWarning"),
)
"""Without what costs each start a tenth of a second: tracebacks, garbage collections, plugins of other packages."""
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("mutants")
"""A busy machine must not look like a test that notices, nor luck like one that never does."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tests to run in one go: those with these ids, in this order, or all of the files."""

    files: tuple[str, ...]
    ids: tuple[str, ...] = ()


@dataclass(eq=False)
class Selection:
    """A pytest plugin: keeps the wanted tests, in the wanted order, and remembers which failed."""

    ids: Sequence[str] = ()
    timeout_s: int = 0
    """Of each test; 0: none."""
    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.ids:
            rank = {test: k for k, test in enumerate(self.ids)}
            items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])

    def pytest_runtest_logstart(self) -> None:
        signal.alarm(self.timeout_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from a mutant's text."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.module = mutant, module_of(mutant.path)

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        if name != self.module:
            return None
        file = ROOT / self.mutant.path
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, loader=self, submodule_search_locations=inside)

    def get_source(self, _name: str) -> str:
        return self.mutant.source


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def in_fork(work: Callable[[], object], answer: Path) -> int:
    """Start `work` in a child that says nothing, hears no Ctrl-C and leaves its result as JSON. Returns its pid."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children itself
    signal.alarm(TIMEOUT_S)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    code = 1
    try:
        answer.write_text(json.dumps(work()))
        code = 0
    finally:
        os._exit(code)


def measure(tests: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """The unchanged tests: which fail, how long each takes, and which lines of the targets each runs."""
    import coverage

    tracer = coverage.Coverage(data_file=None, include=[str(ROOT / path) for path in targets])

    class Contexts:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            tracer.switch_context(item.nodeid)
            yield

    selection = Selection()
    signal.alarm(0)
    tracer.start()
    code = pytest.main([*PYTEST, *tests], plugins=[selection, Contexts()])
    tracer.stop()
    lines: dict[str, dict[str, list[int]]] = {}
    for file in tracer.get_data().measured_files():
        by_test = lines.setdefault(str(Path(file).relative_to(ROOT)), {})
        for line, names in tracer.get_data().contexts_by_lineno(file).items():
            for name in filter(None, names):
                by_test.setdefault(name, []).append(line)
    return {"code": int(code), "failed": selection.failed, "seconds": selection.seconds, "lines": lines}


def trial(mutant: Mutant, dependants: Sequence[str], groups: Sequence[Group]) -> str | None:
    """The test that fails on the mutant, or why it cannot even be imported; None when it survives."""
    for name in dependants:
        parent, _, child = name.rpartition(".")
        if sys.modules.pop(name, None) and child in vars(sys.modules.get(parent, sys)):
            delattr(sys.modules[parent], child)
    sys.meta_path.insert(0, Changed(mutant))
    try:
        for name in dependants:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 — whatever a mutant raises
        return f"import: {error!r}"
    for group in groups:
        selection = Selection(group.ids, TIMEOUT_S)
        code = pytest.main([*PYTEST, *group.files], plugins=[selection])
        if selection.failed or code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
            return selection.failed[0] if selection.failed else "collection"
        if code != pytest.ExitCode.OK:
            raise RuntimeError(f"pytest said {code!r} for {group.files}")
    return None
