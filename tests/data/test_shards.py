"""Shards from data sets and from a user's arrays: padded copies of the records; unsuitable records are
rejected with their position.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

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
    return Dataset(
        name="small",
        train_inputs=inputs[:records],
        train_targets=labels[:records],
        test_inputs=inputs[records:],
        test_targets=labels[records:],
        classes=3,
        mean=(0.5,),
        deviation=(0.25,),
    )


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
    parts = partition(data.train_targets, 3, "sizes", 0, sizes=[2, 7, 4])
    shards = Shards.from_dataset(data, parts)
    assert shards.inputs.shape == (3, 7, 1, 4, 4) and shards.inputs.dtype == torch.float32
    assert shards.counts == (2, 7, 4) and shards.agents == 3
    for agent, part in enumerate(parts):
        expected = (data.train_inputs[part] / 255 - 0.5) / 0.25
        assert np.allclose(shards.inputs[agent, : len(part)], expected, atol=1e-6)
        assert shards.targets[agent, : len(part)].tolist() == data.train_targets[part].tolist()
        assert not shards.inputs[agent, len(part) :].any() and not shards.targets[agent, len(part) :].any()
    assert shards.test_inputs is not None and shards.test_targets is not None
    assert shards.test_inputs.shape == (6, 1, 4, 4) and shards.test_targets.dtype == torch.int64


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
        assert torch.equal(arrays.inputs, other.inputs) and torch.equal(arrays.targets, other.targets)
        assert other.counts == (5, 3) and other.classes == 3
        assert arrays.test_inputs is not None and other.test_inputs is not None
        assert torch.equal(arrays.test_inputs, other.test_inputs)
    assert np.array_equal(arrays.inputs[0].numpy(), pairs[0][0])


def test_the_test_records_are_optional_and_to_moves_everything() -> None:
    shards = Shards.from_arrays([blobs(5)])
    assert shards.test_inputs is None and shards.test_targets is None
    full = Shards.from_arrays([blobs(5)], test=blobs(2)).to("meta")
    tensors = (full.inputs, full.targets, full.test_inputs, full.test_targets)
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
    assert full.counts == (5,) and shards.to("meta").test_inputs is None


def test_tokens_stay_integers() -> None:
    tokens, labels = np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1])
    shards = Shards.from_arrays([(tokens, labels)], dtype=torch.int64)
    assert shards.inputs.dtype == torch.int64 and shards.inputs[0].tolist() == tokens.tolist()
    with pytest.raises(DataError, match=r"agent 0: expected integer inputs for torch.int64, got \d"):
        Shards.from_arrays([(tokens + 0.5, labels)], dtype=torch.int64)
    with pytest.raises(DataError, match=r"one of the dtypes .*float16"):
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
    ({"pixel": np.inf, "dtype": np.float16}, "infinite.* the first at index 4"),
    ({"pixel": 1e300, "dtype": np.float64}, "finite inputs .* index 4"),
    ({"label": -1}, r"labels in 0\.\.2, got -1 at index 2"),
    ({"label": 1.5, "label_dtype": np.float64}, "integer labels, got 1.5 at index 2"),
    ({"label": np.nan, "label_dtype": np.float64}, "finite targets .* index 2"),
    ({"label_dtype": str}, "numeric targets, got dtype <U"),
    ({"dtype": object}, "numeric inputs, got dtype object"),
    ({"dtype": complex}, "numeric inputs, got dtype complex128"),
    ({"keep": slice(5)}, "as many targets as inputs, got 6 and 5"),
    ({"keep": slice(0), "keep_labels": slice(0)}, "at least one record"),
    ({"keep": (slice(None), 0, 0, 0)}, "shape \\[records, ...\\], got shape \\(6,\\)"),
    ({"keep": (slice(None), 0, 0, slice(0))}, "at least one number"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSALS)
def test_unsuitable_records_are_rejected_with_their_agent(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"agent 3: expected .*{reason}"):
        Shards.from_arrays([blobs(6), blobs(6), blobs(6), spoiled(**changes)], classes=3)
    with pytest.raises(DataError, match=f"test records: expected .*{reason}"):
        Shards.from_arrays([blobs(6)], test=spoiled(**changes), classes=3)


def test_labels_out_of_range_and_different_shapes_are_rejected() -> None:
    with pytest.raises(
        DataError, match=r"agent 1: expected labels in 0\.\.1, got 2 at index 2 \(2 such labels\)"
    ):
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


def test_the_error_for_a_loader_names_the_right_constructor() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), batch_size=2)
    assert Shards.from_torch([loader, loader.dataset], test=loader).counts == (4, 4)
    for one in (loader, loader.dataset):
        with pytest.raises(DataError, match=r"agent 0: .* got \w+\. Use Shards.from_torch"):
            Shards.from_arrays([one])  # type: ignore[list-item]
    for given in (loader, loader.dataset, torch.zeros(3), 5, zip([1], [2], strict=True)):
        with pytest.raises(DataError, match="Expected a list with the records of each agent, got "):
            Shards.from_arrays(given)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="Expected a list with the records of each agent, got "):
            Shards.from_torch(given)  # type: ignore[arg-type]


def test_unsuitable_items_are_rejected_with_their_index() -> None:
    good = (torch.zeros(2), 0)
    with pytest.raises(DataError, match=r"agent 1: expected item 1 to be a pair .* transform"):
        Shards.from_torch([Items([good]), Items([good, ("an image", 0)])])
    with pytest.raises(
        DataError, match=r"agent 0: expected every item in one shape, got: .*entry 0 and \[3\]"
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
def test_user_arrays_by_path(tmp_path: Path, single: bool) -> None:
    data = load(save(tmp_path, single))
    assert data.classes == 3 and data.train_inputs.shape == (6, 1, 4, 4)
    test = data.test()
    assert test is not None
    inputs, labels = test
    assert np.array_equal(inputs, blobs(4, 1)[0]) and np.array_equal(labels, blobs(4, 1)[1])
    assert load(str(save(tmp_path, single, classes=np.array(7)))).classes == 7


def test_user_bytes_are_divided_by_255(tmp_path: Path) -> None:
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
        ({"train_labels": None}, "expected an array '(train_)?labels' or '(train_)?targets', got"),
        ({"classes": np.array(2)}, r"training records: expected labels in 0\.\.1, got 2"),
        ({"classes": np.array([2, 3])}, "'classes' to be one whole number"),
        ({"train_inputs": np.array([None] * 6)}, "cannot be read .* Python objects are not accepted"),
    ],
)
def test_unsuitable_user_arrays_are_refused(
    tmp_path: Path, single: bool, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=rf"\.npz.*{reason}"):
        load(save(tmp_path, single, **changes))


def test_missing_user_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Expected the file .*train\.npz, which does not exist"):
        load(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"broken\.npz: cannot be read"):
        load(tmp_path / "broken.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(DataError, match="got another kind of file"):
        load(tmp_path / "single.npy")
    with pytest.raises(DataError, match=r"absent\.npz, which does not exist"):
        load(tmp_path / "absent.npz")


NUMBERS = np.arange(6) - 2.5
TABLES = np.arange(12).reshape(6, 2)


@pytest.mark.parametrize(
    ("targets", "kept", "classes"),
    [
        (np.arange(6) % 3, torch.int64, 3),
        ((np.arange(6) % 2).astype(np.uint8), torch.int64, 2),
        (np.arange(6) % 2 == 0, torch.int64, 2),
        (np.arange(6) - 2, torch.int64, None),
        (TABLES, torch.int64, None),
        (NUMBERS, torch.float64, None),
        (NUMBERS.astype(np.float16), torch.float32, None),
        (TABLES.astype(np.float32).reshape(6, 2, 1), torch.float32, None),
    ],
)
def test_targets_have_any_shape_and_keep_their_type(targets: np.ndarray, kept: Any, classes: Any) -> None:
    inputs = blobs(6)[0]
    pairs = [(inputs, targets), (inputs[:4], targets[:4])]
    shards = Shards.from_arrays(pairs, test=(inputs[:3], targets[:3]))
    assert shards.targets.shape == (2, 6, *targets.shape[1:]) and shards.targets.dtype == kept
    assert shards.classes == classes and not shards.targets[1, 4:].any()
    assert shards.test_targets is not None and shards.test_targets.dtype == kept
    for found, expected in zip((*shards.targets, shards.test_targets), (6, 4, 3), strict=True):
        assert np.array_equal(found[:expected].numpy(), targets[:expected])
    assert shards.pooled().targets.shape == (1, 10, *targets.shape[1:])
    tensors = [TensorDataset(*map(torch.from_numpy, pair)) for pair in pairs] if kept != torch.float32 else []
    items = [Items([(torch.from_numpy(a), b) for a, b in zip(*pair, strict=True)]) for pair in pairs]
    for given in (tensors, items):
        if given:
            assert torch.equal(Shards.from_torch(given).targets.double(), shards.targets.double())


def test_one_agent_with_real_numbers_makes_all_targets_real() -> None:
    inputs = blobs(6)[0]
    shards = Shards.from_arrays([(inputs, np.arange(6)), (inputs, NUMBERS)])
    assert shards.targets.dtype == torch.float64 and shards.classes is None
    with pytest.raises(DataError, match=r"agent 1: expected targets of shape \(\) as in agent 0, got \(2,\)"):
        Shards.from_arrays([(inputs, np.arange(6)), (inputs, TABLES)])
    with pytest.raises(DataError, match=r"entry 0 and \[2\] at entry 1"):
        Shards.from_torch([Items([(torch.zeros(2), 0), (torch.zeros(2), torch.zeros(2))])])


def test_the_digest_covers_targets_and_is_unchanged_for_labels() -> None:
    inputs, labels = blobs(6)
    plain = Shards.from_arrays([(inputs, labels)]).digest()
    others = [labels.astype(np.float32), labels.astype(np.float64), labels[:, None], labels[::-1].copy()]
    assert len({plain, *(Shards.from_arrays([(inputs, one)]).digest() for one in others)}) == 5
    # As in run folders of versions in which targets had no shapes.
    assert plain == "588cec2512326307adb508536aec4f1cfb8198a0049d2088f9128ee71b26d4b6"


@pytest.mark.parametrize("single", [True, False])
def test_user_arrays_without_a_test_part_and_with_any_targets(tmp_path: Path, single: bool) -> None:
    bare = {"test_inputs": None, "test_labels": None}
    assert load(save(tmp_path, True, **bare)).test() is None
    place = save(
        tmp_path,
        single,
        train_labels=None,
        test_labels=None,
        train_targets=TABLES,
        test_targets=TABLES[:4] * 0.5,
    )
    data = load(place)
    assert data.classes is None and data.train_targets.dtype == np.float64 == data.test()[1].dtype
    shards = Shards.from_dataset(data, [np.array([0, 2]), np.array([1])])
    assert shards.targets.tolist() == [[[0, 1], [4, 5]], [[2, 3], [0, 0]]] and shards.test_targets.shape == (
        4,
        2,
    )
    with pytest.raises(DataError, match="expected 'labels' as in the training records, got 'targets'"):
        load(save(tmp_path, single, test_labels=None, test_targets=np.zeros(4)))
    (tmp_path / "test.npz").unlink(missing_ok=True)
    if not single:
        assert load(tmp_path).test_inputs is None
