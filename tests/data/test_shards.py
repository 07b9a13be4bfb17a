"""Shards and a user's own arrays: what goes in comes out, padded; what is unfit is refused with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from topdp.data import Dataset, Shards, load, partition
from topdp.errors import DataError


def blobs(records: int, seed: int = 0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.arange(records) % classes
    inputs = generator.normal(size=(records, 1, 4, 4)) + labels[:, None, None, None]
    return inputs.astype(np.float32), labels


def dataset(records: int = 20) -> Dataset:
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (records + 6, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(records + 6) % 3
    parts = (inputs[:records], labels[:records], inputs[records:], labels[records:])
    return Dataset("small", *parts, 3, (0.5,), (0.25,))


class Items(TorchDataset[Any]):
    """A map-style dataset that is not a TensorDataset."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_from_dataset_scales_and_pads() -> None:
    data = dataset()
    parts = partition(data.train_labels, 3, "sizes", 0, sizes=[2, 7, 4])
    shards = Shards.from_dataset(data, parts)
    assert shards.inputs.shape == (3, 7, 1, 4, 4) and shards.inputs.dtype == torch.float32
    assert shards.counts == (2, 7, 4) and shards.sizes.tolist() == [2, 7, 4] and shards.agents == 3
    for agent, part in enumerate(parts):
        expected = (data.train_inputs[part] / 255 - 0.5) / 0.25
        assert np.allclose(shards.inputs[agent, : len(part)], expected, atol=1e-6)
        assert shards.labels[agent, : len(part)].tolist() == data.train_labels[part].tolist()
        assert not shards.inputs[agent, len(part) :].any() and not shards.labels[agent, len(part) :].any()
    assert shards.test_inputs is not None and shards.test_labels is not None
    assert shards.test_inputs.shape == (6, 1, 4, 4) and shards.test_labels.dtype == torch.int64


def test_from_dataset_refuses_a_record_at_two_agents() -> None:
    with pytest.raises(DataError, match=r"record 4 at agents \[0, 2\]"):
        Shards.from_dataset(dataset(), [np.array([3, 4]), np.array([5]), np.array([4, 6])])
    with pytest.raises(DataError, match=r"agent 1: expected record indices in 0\.\.19"):
        Shards.from_dataset(dataset(), [np.array([3]), np.array([20])])
    with pytest.raises(DataError, match="agent 1: expected at least one record"):
        Shards.from_dataset(dataset(), [np.array([3]), np.array([], np.int64)])


def test_from_arrays_and_from_torch_agree() -> None:
    pairs = [blobs(5, 1), blobs(3, 2)]
    arrays = Shards.from_arrays(pairs, test=blobs(4, 3))
    tensors = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs]
    items = [Items([(torch.from_numpy(a), int(b)) for a, b in zip(x, y, strict=True)]) for x, y in pairs]
    test_x, test_y = blobs(4, 3)
    for given in (tensors, items):
        other = Shards.from_torch(
            given, test=TensorDataset(torch.from_numpy(test_x), torch.from_numpy(test_y))
        )
        assert torch.equal(arrays.inputs, other.inputs) and torch.equal(arrays.labels, other.labels)
        assert other.counts == (5, 3) and other.classes == 3
        assert arrays.test_inputs is not None and other.test_inputs is not None
        assert torch.equal(arrays.test_inputs, other.test_inputs)
    assert np.array_equal(arrays.inputs[0].numpy(), pairs[0][0])


def test_the_test_records_are_optional_and_to_moves_everything() -> None:
    shards = Shards.from_arrays([blobs(5)])
    assert shards.test_inputs is None and shards.test_labels is None
    full = Shards.from_arrays([blobs(5)], test=blobs(2)).to("meta")
    tensors = (full.inputs, full.labels, full.sizes, full.test_inputs, full.test_labels)
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
    assert full.counts == (5,) and shards.to("meta").test_inputs is None


def test_tokens_stay_whole_numbers() -> None:
    tokens, labels = np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1])
    shards = Shards.from_arrays([(tokens, labels)], dtype=torch.int64)
    assert shards.inputs.dtype == torch.int64 and shards.inputs[0].tolist() == tokens.tolist()
    with pytest.raises(DataError, match="agent 0: expected inputs that are whole numbers"):
        Shards.from_arrays([(tokens + 0.5, labels)], dtype=torch.int64)
    with pytest.raises(DataError, match=r"dtype out of .*float16"):
        Shards.from_arrays([(tokens, labels)], dtype=torch.float16)


def spoiled(**changes: Any) -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = blobs(6)
    inputs = inputs.astype(changes.get("dtype", np.float32))
    labels = labels.astype(changes.get("label_dtype", np.int64))
    if "pixel" in changes:
        inputs[4, 0, 1, 1] = changes["pixel"]
    if "label" in changes:
        labels[2] = changes["label"]
    return inputs[changes.get("keep", slice(None))], labels[changes.get("keep_labels", slice(None))]


REFUSALS = [
    ({"pixel": np.nan}, "NaN.* in 1 records, the first at index 4"),
    ({"pixel": -np.inf}, "infinite.* the first at index 4"),
    ({"pixel": 1e300, "dtype": np.float64}, "finite inputs .* index 4"),
    ({"label": -1}, "labels of at least 0, got -1 at index 2"),
    ({"label": 1.5, "label_dtype": np.float64}, "integer labels, got 1.5 at index 2"),
    ({"label": np.nan, "label_dtype": np.float64}, "integer labels, got nan at index 2"),
    ({"label_dtype": str}, "integer labels, got dtype <U"),
    ({"dtype": object}, "numeric inputs, got dtype object"),
    ({"dtype": complex}, "numeric inputs, got dtype complex128"),
    ({"keep": slice(5)}, "as many labels as inputs, got 5 and 6"),
    ({"keep": slice(0), "keep_labels": slice(0)}, "at least one record"),
    ({"keep": (slice(None), 0, 0, 0)}, "shape \\[records, ...\\], got shape \\(6,\\)"),
    ({"keep": (slice(None), 0, 0, slice(0))}, "at least one number"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSALS)
def test_unfit_records_are_refused_with_their_agent(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"agent 3: expected .*{reason}"):
        Shards.from_arrays([blobs(6), blobs(6), blobs(6), spoiled(**changes)])
    with pytest.raises(DataError, match=f"test records: expected .*{reason}"):
        Shards.from_arrays([blobs(6)], test=spoiled(**changes))


def test_labels_out_of_range_and_shapes_that_differ() -> None:
    with pytest.raises(DataError, match=r"agent 1: expected labels in 0\.\.1, got 2 at index 2 \(2 in all\)"):
        Shards.from_arrays([blobs(2, classes=2), blobs(6)], classes=2)
    with pytest.raises(DataError, match=r"test records: expected labels in 0\.\.2, got 3"):
        Shards.from_arrays([blobs(6)], test=blobs(8, classes=4))
    inputs, labels = blobs(6)
    with pytest.raises(
        DataError, match=r"agent 1: expected records of shape \(1, 4, 4\) as in agent 0, got \(1, 4, 3\)"
    ):
        Shards.from_arrays([blobs(6), (inputs[..., :3], labels)])
    with pytest.raises(DataError, match="test records: expected records of shape"):
        Shards.from_arrays([blobs(6)], test=(inputs[..., :3], labels))
    with pytest.raises(DataError, match="at least one agent"):
        Shards.from_arrays([])
    with pytest.raises(DataError, match="agent 0: expected a pair"):
        Shards.from_arrays([(inputs, labels, labels)])  # type: ignore[list-item]


def test_unfit_items_are_refused_with_their_index() -> None:
    good = (torch.zeros(2), 0)
    with pytest.raises(DataError, match=r"agent 1: expected item 1 to be a pair .* transform"):
        Shards.from_torch([Items([good]), Items([good, ("an image", 0)])])
    with pytest.raises(
        DataError, match=r"agent 0: expected records of shape \(2,\) as in item 0, got \(3,\) in item 1"
    ):
        Shards.from_torch([Items([good, (torch.zeros(3), 0)])])
    with pytest.raises(DataError, match="agent 0: expected at least one record"):
        Shards.from_torch([Items([])])


def save(folder: Path, single: bool, **changes: Any) -> Path:
    (inputs, labels), (test_inputs, test_labels) = blobs(6), blobs(4, 1)
    arrays: dict[str, Any] = {
        "train_inputs": inputs,
        "train_labels": labels,
        "test_inputs": test_inputs,
        "test_labels": test_labels,
    }
    arrays = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
    if single:
        np.savez(folder / "mine.npz", **arrays)
        return folder / "mine.npz"
    for part in ("train", "test"):
        own = {
            name.removeprefix(f"{part}_"): array for name, array in arrays.items() if name.startswith(part)
        }
        np.savez(
            folder / f"{part}.npz", **own, **({"classes": arrays["classes"]} if "classes" in arrays else {})
        )
    return folder


@pytest.mark.parametrize("single", [True, False])
def test_own_arrays_by_path(tmp_path: Path, single: bool) -> None:
    data = load(save(tmp_path, single))
    assert data.classes == 3 and data.train_inputs.shape == (6, 1, 4, 4)
    inputs, labels = data.test()
    assert np.array_equal(inputs, blobs(4, 1)[0]) and np.array_equal(labels, blobs(4, 1)[1])
    assert load(str(save(tmp_path, single, classes=np.array(7)))).classes == 7


def test_own_bytes_are_divided_by_255(tmp_path: Path) -> None:
    data = load(save(tmp_path, True, train_inputs=np.full((6, 1, 4, 4), 255, np.uint8)))
    assert np.all(data.train()[0] == 1)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"test_labels": np.array([0, 1, 2, 3])},
            r"test records: expected labels in 0\.\.2, got 3 at index 3",
        ),
        ({"train_inputs": np.full((6, 1, 4, 4), np.nan)}, "training records: expected finite inputs"),
        ({"test_inputs": np.zeros((4, 1, 4, 5))}, r"test records: expected records of shape \(1, 4, 4\)"),
        ({"train_labels": None}, "expected an array '(train_)?labels', got"),
        ({"classes": np.array(2)}, r"training records: expected labels in 0\.\.1, got 2"),
        ({"classes": np.array([2, 3])}, "'classes' to be one whole number"),
        ({"train_inputs": np.array([None] * 6)}, "cannot be read .* Python objects are not accepted"),
    ],
)
def test_own_arrays_that_are_unfit(
    tmp_path: Path, single: bool, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=rf"\.npz.*{reason}"):
        load(save(tmp_path, single, **changes))


def test_own_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Expected the file .*train\.npz, which is not there"):
        load(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"broken\.npz: cannot be read"):
        load(tmp_path / "broken.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(DataError, match="got another kind of file"):
        load(tmp_path / "single.npy")
    with pytest.raises(DataError, match=r"absent\.npz, which is not there"):
        load(tmp_path / "absent.npz")
