"""Install the pinned oracle into .oracle/<platform>: from the configured indexes, from a folder of wheels, or from an
archive in parts. Repeating it costs nothing; a half-done installation is removed and done again."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import platform as host
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gate.errors import OracleError, StorageError, UsageError
from oracle import archive, environment, shimwheel
from oracle.environment import Environment, Source
from oracle.pins import Pin, home, load

Say = Callable[[str], None]


def install(
    platform: str,
    *,
    source: Path | None = None,
    python: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    say: Say = print,
) -> Environment:
    """Install one platform's oracle, or find it installed.

    source: a folder with wheels (`*.whl`) or archive parts (`oracle.part.*`); None asks the configured indexes.
    python: interpreter to build on; None takes the running one.
    Errors: OracleError (wrong Python or machine, failed step, result not as pinned), StorageError (disk), UsageError.
    """
    pin = load(platform)
    folder = home(pin.platform, root)
    kind = _kind(source)
    interpreter = python or Path(sys.executable)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder, say):
        found = environment.read(pin.platform, root)
        if found is not None and found.digest == pin.digest and Path(found.python).exists() and not force:
            say(f"oracle {pin.platform}: {pin.distribution} {pin.version} is already installed in {folder}")
            return found
        if folder.exists():
            say(f"oracle {pin.platform}: removing {folder} ({_why_removed(found, pin)})")
            shutil.rmtree(folder)
        _check_host(pin, folder.parent)
        steps = _Steps(pin, say)
        folder.mkdir()
        if kind == "archive" and source is not None:
            made = _from_archive(pin, source, folder, interpreter, steps)
        else:
            made = _into_venv(pin, source, folder, interpreter, steps)
        steps.say("comparing the result with the pin")
        from oracle.verify import compare

        compare(pin, made).raise_if_different()
        made.write(folder)
        say(f"oracle {pin.platform}: {pin.distribution} {pin.version} installed in {folder} ({steps.elapsed_s:.0f} s)")
        return made


class _Steps:
    """Progress lines with the seconds passed since the start."""

    def __init__(self, pin: Pin, say: Say) -> None:
        self._prefix, self._say, self._start = f"oracle {pin.platform}", say, time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        self._say(f"{self._prefix}: [{self.elapsed_s:4.0f} s] {text}")


def _kind(source: Path | None) -> Source:
    if source is None:
        return "index"
    if not source.is_dir():
        raise UsageError(f"--from {source} is not a folder", expected="a folder with *.whl or oracle.part.* files")
    if archive.parts(source):
        return "archive"
    if any(source.glob("*.whl")):
        return "wheels"
    raise UsageError(f"--from {source} holds nothing to install", expected="*.whl or oracle.part.* files")


def _why_removed(found: Environment | None, pin: Pin) -> str:
    if found is None:
        return "half-done installation"
    return "made for another pin" if found.digest != pin.digest else "asked to, or its Python is gone"


def _check_host(pin: Pin, folder: Path) -> None:
    if host.system() != "Linux" or host.machine() not in pin.machines:
        raise OracleError(
            f"this machine is {host.system()} {host.machine()}",
            expected=f"Linux on {' or '.join(pin.machines)} for the {pin.platform} oracle",
        )
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < pin.min_free_gb:
        raise StorageError(
            f"{free_gb:.1f} GB free in {folder}", expected=f"{pin.min_free_gb:.0f} GB", hint="free some disk space"
        )


def check_python(pin: Pin, python: Path) -> None:
    """OracleError unless the interpreter runs and its version has wheels for this pin."""
    probe = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        raise OracleError(f"{python} does not run: {_last_line(probe.stderr)}", hint="name another with --python")
    major, minor = map(int, probe.stdout.split())
    if not pin.python_min <= (major, minor) < pin.python_below:
        low, below = (".".join(map(str, bound)) for bound in (pin.python_min, pin.python_below))
        raise OracleError(
            f"{python} is Python {major}.{minor}",
            expected=f"at least {low} and below {below} for the {pin.platform} oracle",
            hint="name another with --python",
        )


def _from_archive(pin: Pin, source: Path, folder: Path, python: Path, steps: _Steps) -> Environment:
    check_python(pin, python)
    site = folder / "site"
    steps.say(f"unpacking {len(archive.parts(source))} parts into {site}")
    archive.unpack(source, site)
    for cache in archive.caches(source):
        steps.say(f"unpacking kernel cache {cache.name} into {Path.home()}")
        archive.unpack_cache(cache, Path.home())
    if placed := archive.place_compiled(Path.home(), site):
        steps.say(f"compiled operators found: {', '.join(placed)}")
    return _stamp(pin, "archive", python.absolute(), str(site))


def _into_venv(pin: Pin, source: Path | None, folder: Path, python: Path, steps: _Steps) -> Environment:
    check_python(pin, python)
    log = folder / "install.log"
    steps.say(f"creating a virtual environment with {python}")
    if _run([str(python), "-m", "venv", str(folder)], log):
        raise OracleError(
            f"{python} -m venv failed: {_last_line(log.read_text())}", hint="on Debian: apt install python3-venv"
        )
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--no-input"]
    pip += ["--disable-pip-version-check", "--progress-bar=off"]
    offline = [] if source is None else ["--no-index", "--find-links", str(source)]
    torch = f"torch=={pin.lock['torch']}"
    steps.say(f"installing {torch}")
    if _run([*pip, *offline, torch], log):
        if source is not None or pin.torch_index is None:
            raise _failed(f"installing {torch}", log)
        steps.say(f"the configured indexes have no {torch}: asking {pin.torch_index}")
        if _run([*pip, "--index-url", pin.torch_index, torch], log):
            raise _failed(f"installing {torch} from {pin.torch_index}", log)
    hashed = {name: version for name, version in pin.lock.items() if name in pin.sha256}
    others = {name: version for name, version in pin.lock.items() if name not in hashed and name != "torch"}
    steps.say(f"installing the other {len(others)} of {len(pin.lock)} pinned packages")
    if _run([*pip, *offline, *(f"{name}=={version}" for name, version in others.items())], log):
        raise _failed("installing the pinned packages", log)
    for name, version in hashed.items():
        steps.say(f"installing {name}=={version}, its wheel checked against the pinned sha256")
        requirements = folder / "hashed.txt"
        requirements.write_text(f"{name}=={version} --hash=sha256:{pin.sha256[name]}\n")
        if _run([*pip, *offline, "-r", str(requirements)], log):
            raise _failed(f"installing {name}=={version}", log)
    if pin.shim_version is not None:
        steps.say("installing the shim that names the CPU build vllm")
        with tempfile.TemporaryDirectory() as temporary:
            wheel = shimwheel.build(pin, Path(temporary))
            if _run([*pip, "--no-index", str(wheel)], log):
                raise _failed("installing the shim", log)
    return _stamp(pin, "index" if source is None else "wheels", folder / "bin/python", None)


def _stamp(pin: Pin, source: Source, python: Path, pythonpath: str | None) -> Environment:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Environment(pin.platform, pin.digest, source, str(python), pythonpath, now)


def _run(command: list[str], log: Path) -> int:
    with log.open("a") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False).returncode


def _failed(what: str, log: Path) -> OracleError:
    return OracleError(
        f"{what} failed: {_last_line(log.read_text())}",
        hint=f"read {log}; without a network, give a folder of wheels with --from",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[-1]


@contextlib.contextmanager
def _only_one(folder: Path, say: Say) -> Iterator[None]:
    """Two installations of one platform must not write the same folder; the second waits, then finds it installed."""
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another installation of {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
