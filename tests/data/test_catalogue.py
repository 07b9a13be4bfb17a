"""Every data set of the catalogue is described completely, so that it can be verified and scaled."""

from __future__ import annotations

import re

import pytest

from topdp.data._dataset_decoding import ARRAY_NAMES
from topdp.data.catalogue import CATALOGUE, CatalogueEntry
from topdp.runs.pictures.chart_style import DATA_TITLES


def images(entry: CatalogueEntry) -> bool:
    return entry.types["train_inputs"] == "uint8"


every_entry = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)


@every_entry
def test_an_entry_has_four_arrays_that_fit_together_each_with_its_checksum(entry: CatalogueEntry) -> None:
    assert tuple(entry.shapes) == tuple(entry.sha256) == ARRAY_NAMES
    for part in ("train", "test"):
        inputs, labels = entry.shapes[f"{part}_inputs"], entry.shapes[f"{part}_labels"]
        assert inputs[0] == labels[0] and len(inputs) == (4 if images(entry) else 2) and len(labels) == 1
    assert entry.shapes["train_inputs"][1:] == entry.shapes["test_inputs"][1:]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in entry.sha256.values())


@every_entry
def test_an_entry_is_scaled_by_one_public_constant_for_each_channel_or_column(entry: CatalogueEntry) -> None:
    if entry.tokens:
        assert entry.mean == entry.deviation == () and entry.types["train_inputs"] == "uint16"
        return
    channels = entry.shapes["train_inputs"][1]
    assert len(entry.mean) == len(entry.deviation) == channels
    assert all(each > 0 for each in entry.deviation)
    if images(entry):
        assert all(0 < mean < 1 for mean in entry.mean) and all(each < 1 for each in entry.deviation)


@every_entry
def test_an_entry_has_a_source_and_a_reader(entry: CatalogueEntry) -> None:
    assert (entry.addresses and entry.md5) or entry.packages
    assert entry.readers and entry.folders
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in entry.md5.values())
    assert all(address.endswith("/") for address in entry.addresses)


def test_all_entries_are_listed_and_have_a_title() -> None:
    assert [entry.name for entry in CATALOGUE.values()] == list(CATALOGUE) == list(DATA_TITLES)
