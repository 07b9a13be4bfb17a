"""Every published format decodes to the same arrays; a damaged file is refused by name."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from data_files import same, small_arrays, write_batches, write_csv, write_idx, write_sheets

from topdp.data import _dataset_decoding as dataset_decoding
from topdp.errors import DataError

MNIST = small_arrays("mnist")
CIFAR = small_arrays("cifar10")


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_round_trip(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path, MNIST, packed=packed)
    found = dataset_decoding.idx_files(tmp_path)
    assert found is not None and same(found, MNIST)


def test_idx_files_may_have_a_dot_in_their_names(tmp_path: Path) -> None:
    for path in write_idx(tmp_path, MNIST, packed=False):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    found = dataset_decoding.idx_files(tmp_path)
    assert found is not None and same(found, MNIST)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "no newline at the end"])
def test_csv_files_round_trip(tmp_path: Path, ending: str) -> None:
    write_csv(tmp_path, MNIST)
    for path in tmp_path.iterdir():
        text = path.read_bytes()
        path.write_bytes(text.rstrip() if ending.startswith("no") else text.replace(b"\n", ending.encode()))
    found = dataset_decoding.csv_files(tmp_path)
    assert found is not None and same(found, MNIST)


def test_cifar_sheets_and_batches_agree(tmp_path: Path) -> None:
    write_sheets(tmp_path / "sheets", CIFAR)
    write_batches(tmp_path / "batches", CIFAR)
    sheets, batches = (
        dataset_decoding.cifar_sheets(tmp_path / "sheets"),
        dataset_decoding.cifar_batches(tmp_path / "batches"),
    )
    assert sheets is not None and same(sheets, CIFAR)
    assert batches is not None and same(batches, CIFAR)


def test_a_folder_without_the_format_gives_none(tmp_path: Path) -> None:
    for reader in (
        dataset_decoding.idx_files,
        dataset_decoding.csv_files,
        dataset_decoding.cifar_batches,
        dataset_decoding.cifar_sheets,
    ):
        assert reader(tmp_path) is None
    assert dataset_decoding.read_cached_arrays(tmp_path / "mnist.npz") is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST)[2].unlink()
    with pytest.raises(DataError, match=r"incomplete: t10k-images-idx3-ubyte\.gz missing"):
        dataset_decoding.idx_files(tmp_path)
    write_batches(tmp_path / "c", CIFAR)
    (tmp_path / "c" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"incomplete: test_batch\.bin missing"):
        dataset_decoding.cifar_batches(tmp_path / "c")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda b: b[:-1], "expected 9424 bytes for shape .* got 9423"),
        (lambda b: b + b"x", "got 9425"),
        (lambda b: b"\0\0\x0d" + b[3:], "magic number 00000d03"),
        (lambda b: b"", "magic number"),
        (lambda b: b[:9], "shape"),
        (lambda b: b"\x1f\x8b" + b[2:], "damaged"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, spoil, reason: str) -> None:  # type: ignore[no-untyped-def]
    path = write_idx(tmp_path, MNIST, packed=False)[0]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte .*{reason}"):
        dataset_decoding.idx_files(tmp_path)


def test_a_truncated_gz_is_named(tmp_path: Path) -> None:
    path = write_idx(tmp_path, MNIST)[1]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is unreadable, damaged or truncated"):
        dataset_decoding.idx_files(tmp_path)


@pytest.mark.parametrize("spoiled", [",256,", ",,", ",x,", ",1234,", ",1,1,"])
def test_a_damaged_csv_is_named(tmp_path: Path, spoiled: str) -> None:
    write_csv(tmp_path, MNIST)
    path = tmp_path / "mnist_test.csv"
    head, rest = path.read_text().split("\n", 1)
    first, _, after = rest.split(",", 2)
    path.write_text(f"{head}\n{first}{spoiled}{after}")
    with pytest.raises(DataError, match=r"mnist_test\.csv is unreadable"):
        dataset_decoding.csv_files(tmp_path)


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    write_sheets(tmp_path, CIFAR)
    write_batches(tmp_path, CIFAR)
    sheet, labels, batch = (
        tmp_path / n for n in ("data_batch_2.png", "test_lables.json", "data_batch_4.bin")
    )
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_4\.bin .*3073"):
        dataset_decoding.cifar_batches(tmp_path)
    labels.write_text("[1, 300]")
    with pytest.raises(DataError, match=r"test_lables\.json"):
        dataset_decoding.cifar_sheets(tmp_path)
    sheet.write_bytes(sheet.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"data_batch_2\.png"):
        dataset_decoding.cifar_sheets(tmp_path)


@pytest.mark.parametrize("kind", ["tgz", "whl"])
def test_unpack_extracts_only_the_requested_files(tmp_path: Path, kind: str) -> None:
    source, into = tmp_path / "package", tmp_path / "into"
    source.mkdir()
    into.mkdir()
    for name in ("wanted.csv", "other.py"):
        (source / name).write_text(name)
    archive = tmp_path / f"package.{kind}"
    if kind == "tgz":
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source, "../../escape")
    else:
        with zipfile.ZipFile(archive, "w") as package:
            for path in source.iterdir():
                package.write(path, f"../../escape/{path.name}")
    dataset_decoding.unpack(archive, into, lambda name: name.endswith(".csv"))
    assert [path.name for path in into.iterdir()] == ["wanted.csv"]
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(DataError, match=f"package.{kind} is unreadable"):
        dataset_decoding.unpack(archive, into, lambda name: True)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_unpack_reads_a_debian_package(tmp_path: Path) -> None:
    tree, into = tmp_path / "tree", tmp_path / "into"
    into.mkdir()
    write_idx(tree / "usr/share/datasets/fashion-mnist", MNIST)
    (tree / "DEBIAN").mkdir()
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: small\n"
    (tree / "DEBIAN/control").write_text(control)
    archive = tmp_path / "small_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(archive)], check=True, capture_output=True)
    dataset_decoding.unpack(archive, into, lambda name: True)
    found = dataset_decoding.idx_files(into)
    assert found is not None and same(found, MNIST)
    archive.write_bytes(b"not a package")
    with pytest.raises(DataError, match=r"small_1_all\.deb"):
        dataset_decoding.unpack(archive, into, lambda name: True)
