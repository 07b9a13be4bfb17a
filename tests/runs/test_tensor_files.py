"""Tensor files: safetensors reads what topdp has written."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from topdp.runs import tensor_files
from topdp.runs.tensor_files import mapped, write_tensors


@pytest.mark.parametrize("piece", [3, 1 << 24])
def test_safetensors_reads_files_that_were_written_in_pieces(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(tensor_files, "NUMBERS_PER_WRITE", piece)
    apart = np.arange(60, dtype=np.float32).reshape(5, 12)[:, :7]  # rows that are not contiguous in memory
    tensors = {"releases": np.array([4]), "rows": apart, "none": np.zeros((0, 7)), "other": np.eye(3)}
    write_tensors(tmp_path / "a.safetensors", tensors, {"round": "3"})
    found = load_file(tmp_path / "a.safetensors")
    assert {name: values.dtype for name, values in found.items()} == {n: v.dtype for n, v in tensors.items()}
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    with safe_open(tmp_path / "a.safetensors", "numpy") as opened:
        assert opened.metadata() == {"round": "3"}
    assert np.array_equal(mapped(tmp_path / "a.safetensors", "rows"), apart)
