"""CSV, Parquet and frames become the same arrays, determined by the schema alone."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from topdp.data.readers._encoding import encode_table
from topdp.data.readers.raw_tables import ColumnPreview, preview_columns, read_csv, read_frame
from topdp.data.readers.record_paths import expand_paths, read_records, read_site_files, records_of_frame
from topdp.data.readers.table_schema import EMPTY_SCHEMA, Schema
from topdp.errors import DataError, InputError

SCHEMA = Schema.of({
    "target": "ill",
    "classes": ["no", "yes"],
    "ranges": {"age": [0, 100]},
    "categories": {"job": ["clerk", "nurse"]},
    "ignore": ["name"],
})  # fmt: skip
HEADER = "name,age,job,ill\n"
ROWS = 'ann,25,nurse,yes\n"b, ob",100,clerk,no\ncem,0,pilot,no\n'
INPUTS = [[-0.5, 0, 1, 0], [1, 1, 0, 0], [-1, 0, 0, 1]]


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "a.csv", encoding: str = "utf-8") -> Path:
        (tmp_path / name).write_text(text, encoding=encoding)
        return tmp_path / name

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_numbers_are_scaled_by_their_range_and_categories_have_a_column_each(csv: Any, encoding: str) -> None:
    records = read_records(csv(HEADER + ROWS, encoding=encoding), SCHEMA)
    np.testing.assert_allclose(records.inputs, INPUTS)
    assert records.inputs.dtype == np.float32
    assert records.targets.tolist() == [1, 0, 0] and records.targets.dtype == np.int64
    assert records.classes == 2 and records.class_names == ("no", "yes")


def test_a_record_is_encoded_independently_of_other_records(csv: Any) -> None:
    """Nothing is fitted: adding a record changes no other."""
    few = read_records(csv(HEADER + ROWS), SCHEMA).inputs
    many = read_records(csv(HEADER + ROWS + "dan,99,priest,yes\n" * 50), SCHEMA).inputs
    np.testing.assert_array_equal(many[:3], few)


def test_parquet_and_frames_are_the_same_records(tmp_path: Path) -> None:
    frame = pandas.DataFrame({
        "name": ["ann", "bob", "cem"],
        "age": [25, 100, 0],
        "job": pandas.Categorical(["nurse", "clerk", "pilot"]),
        "ill": ["yes", "no", "no"],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "a.parquet")
    columns = {name: list(frame[name]) for name in frame}
    for records in (
        read_records(tmp_path / "a.parquet", SCHEMA),
        records_of_frame(frame, SCHEMA, "frame"),
        records_of_frame(columns, SCHEMA, "columns"),
    ):
        np.testing.assert_allclose(records.inputs, INPUTS)
        assert records.targets.tolist() == [1, 0, 0]


def test_numbers_of_every_type_are_classes_and_categories_by_their_value(tmp_path: Path) -> None:
    schema = Schema.of({"target": "ill", "classes": [0, 1], "categories": {"ward": [1, 2]}})
    for ill, ward in (([True, False], [1.0, 2.0]), ([1, 0], ["1", "2"]), ([1.0, 0.0], [1, 2])):
        frame = pandas.DataFrame({"ill": ill, "ward": ward})
        frame.to_parquet(tmp_path / "a.parquet")
        for records in (
            records_of_frame(frame, schema, "frame"),
            read_records(tmp_path / "a.parquet", schema),
        ):
            assert records.targets.tolist() == [1, 0]
            assert records.inputs.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_values_outside_of_a_range_are_clipped_and_counted_in_the_log(csv: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "topdp.data"):
        records = read_records(csv(HEADER + "ann,-7,nurse,no\nbob,400,nurse,yes\ncem,50,nurse,yes\n"), SCHEMA)
    assert records.inputs[:, 0].tolist() == [-1, 1, 0]
    assert "2 of 3 values of age were outside of [0, 100]" in caplog.text


def test_real_targets_are_unchanged_or_scaled_by_a_stated_range(csv: Any) -> None:
    path = csv("age,cost,days\n50,3.5,7\n0,-1,0\n")
    plain = Schema.of({"target": "cost", "ranges": {"age": [0, 100]}, "ignore": ["days"]})
    records = read_records(path, plain)
    assert records.targets.tolist() == [3.5, -1.0] and records.classes is None
    both = Schema.of({"target": ["cost", "days"], "ranges": {"age": [0, 100], "days": [0, 14]}})
    assert read_records(path, both).targets.tolist() == [[3.5, 0.0], [-1.0, -1.0]]


@pytest.mark.parametrize("gap", ["", "NA", "nan", "?", " null "])
def test_a_missing_value_is_refused_or_filled_in_as_stated(csv: Any, gap: str) -> None:
    path = csv(HEADER + f"ann,50,nurse,no\nbob,{gap},nurse,no\ncem,0,{gap},no\n")
    with pytest.raises(
        DataError, match=r"a.csv, line 3: expected a value of 'age', got a missing value \(1 of 3 records"
    ):
        read_records(path, SCHEMA)
    filled = Schema.of({**SCHEMA.tree(), "missing": {"age": 75, "job": "other"}, "indicators": ["age"]})
    assert read_records(path, filled).inputs.tolist() == [
        [0, 0, 0, 1, 0],
        [0.5, 1, 0, 1, 0],
        [-1, 0, 0, 0, 1],
    ]


def test_a_listed_category_is_not_a_missing_value(csv: Any) -> None:
    schema = Schema.of({"target": "ill", "classes": ["no", "yes"], "categories": {"land": ["NA", "NO"]}})
    assert read_records(csv("land,ill\nNA,no\nNO,no\n"), schema).inputs.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_gaps_in_frames_and_parquet_are_missing(tmp_path: Path) -> None:
    frame = pandas.DataFrame({
        "age": pandas.array([50, None], dtype="Int64"), "job": ["nurse", None], "ill": ["no", "yes"]
    })  # fmt: skip
    frame.to_parquet(tmp_path / "a.parquet")
    tree = {**SCHEMA.tree(), "ignore": []}
    filled = Schema.of({**tree, "missing": {"age": 0, "job": "clerk"}})
    for read in (
        lambda s: records_of_frame(frame, s, "frame"),
        lambda s: read_records(tmp_path / "a.parquet", s),
    ):
        assert read(filled).inputs.tolist() == [[0, 0, 1, 0], [-1, 1, 0, 0]]
        with pytest.raises(DataError, match="record 1: expected a value of 'age', got a missing value"):
            read(Schema.of(tree))


def test_without_a_schema_the_error_shows_a_template_without_values(csv: Any) -> None:
    path = csv(HEADER + ROWS)
    with pytest.raises(InputError) as refused:
        read_records(path)
    text = str(refused.value).replace(str(path), "")
    assert "age = []" in text and "name = []" in text
    assert not any(value in text for value in ("ann", "nurse", "pilot", "25", "yes"))
    with pytest.raises(InputError, match="the schema does not mention the column 'name'") as refused:
        read_records(path, Schema.of({**SCHEMA.tree(), "ignore": []}))
    assert "name = []" in str(refused.value) and 'job = ["clerk", "nurse"]' in str(refused.value)
    assert "pilot" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header line .*, got an empty file"),
        (HEADER, "expected at least one record below the header, got none"),
        (
            "name;age;job;ill\nann;1;nurse;no\n",
            "If ';' separates the columns, state delimiter = ';' in the schema",
        ),
        (HEADER + "ann,25,nurse\n", "line 2: expected 4 values as in the header, got 3"),
        (HEADER + ROWS + "ann,2,5,nurse,no\n", "line 5: expected 4 values as in the header, got 5"),
        ("age,age,job,ill\n1,1,nurse,no\n", "expected every column once, got 'age' twice"),
        ("age,,job,ill\n1,1,nurse,no\n", "expected a name for every column, got none for column 2"),
        (HEADER + "ann,old,nurse,no\n", "line 2: expected a number in 'age', got 'old'"),
        (HEADER + "ann,inf,nurse,no\n", "line 2: expected a finite number in 'age'"),
        (HEADER + "ann,1,nurse,perhaps\n", "expected one of the classes no, yes in 'ill', got 'perhaps'"),
        (HEADER + "ann,1,nurse,\n", "line 2: expected a value of the target 'ill', got a missing value"),
        (
            HEADER.replace("job", "work") + ROWS,
            "expected the column 'job' of the schema, got only the columns name",
        ),
        (HEADER + 'ann,1,"nurse\n', "cannot be read as CSV"),
    ],
)
def test_bad_files_are_refused_with_the_line(csv: Any, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_records(csv(text), SCHEMA)


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(DataError, match="expected UTF-8 text, got the byte 0xf6 at position 2"):
        read_csv(tmp_path / "a.csv")


def test_another_delimiter_can_be_stated_and_blank_lines_are_skipped(csv: Any) -> None:
    schema = Schema.of({**SCHEMA.tree(), "delimiter": ";"})
    text = (HEADER + ROWS.replace('"b, ob"', "bob")).replace(",", ";").replace("\n", "\n\n")
    np.testing.assert_allclose(read_records(csv(text), schema).inputs, INPUTS)
    assert read_csv(csv("a\tb\n1\t2\n", "a.tsv")).columns.keys() == {"a", "b"}


def test_files_that_hold_no_records_are_refused(tmp_path: Path, csv: Any) -> None:
    with pytest.raises(DataError, match="which does not exist"):
        read_records(tmp_path / "absent.csv", SCHEMA)
    with pytest.raises(DataError, match=r"expected a name that ends with .*got '.xlsx'"):
        read_records(csv("x", "a.xlsx"), SCHEMA)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_records(csv("x", "a.parquet"), SCHEMA)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.parquet").touch()
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"pip install -c constraints.txt '\.\[tables\]'"):
        read_records(tmp_path / "a.parquet", SCHEMA)


def test_nested_columns_are_refused(tmp_path: Path) -> None:
    pandas.DataFrame({"age": [[1, 2]], "ill": ["no"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="expected one value per record, got list"):
        read_records(tmp_path / "a.parquet", SCHEMA)


class ClassLabel:
    names = ("healthy", "ill")


class Hub:
    """The part of a Hugging Face dataset that topdp uses."""

    column_names = ("note", "label")
    features = {"note": object(), "label": ClassLabel()}  # noqa: RUF012

    def __getitem__(self, name: str) -> list[Any]:
        return {"note": ["a cough", "none"], "label": [1, 0]}[name]


def test_declared_classes_of_a_hugging_face_dataset_are_used() -> None:
    schema = Schema.of({"target": "label", "text": {"column": "note", "length": 3, "vocabulary": ["cough"]}})
    records = records_of_frame(Hub(), schema, "hub")
    assert records.inputs.tolist() == [[1, 2, 0], [1, 0, 0]] and records.inputs.dtype == np.int64
    assert records.targets.tolist() == [1, 0] and records.class_names == ("healthy", "ill")
    with pytest.raises(DataError, match=r"expected one split of a data set, got 'train'. .* data\['train'\]"):
        records_of_frame({"train": Hub()}, schema, "hub")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (3, "expected a pandas frame, .* got int"),
        ({}, "expected a pandas frame"),
        (pandas.DataFrame({0: [1]}), "expected texts as names of columns"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "expected every column once"),
        ({"a": []}, "expected at least one record, got none"),
        ({"a": [1, 2], "b": [1]}, "expected 2 values in 'b', got an array of shape"),
        ({"a": np.zeros((2, 2))}, r"expected 2 values in 'a', got an array of shape \(2, 2\)"),
    ],
)
def test_objects_that_are_not_frames_are_refused(frame: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_frame(frame)


def test_missing_text_is_empty_and_numbers_are_not_text() -> None:
    schema = Schema.of({"target": "y", "classes": ["a", "b"], "text": {"column": "x", "length": 2}})
    inputs, _ = encode_table(read_frame({"x": ["hello", None], "y": ["a", "b"]}), schema)
    assert inputs[1].tolist() == [0, 0] and inputs[0, 0] > 0
    with pytest.raises(DataError, match="record 0: expected text, got "):
        encode_table(read_frame({"x": [3], "y": ["a"]}), schema)


def test_arrays_need_no_schema_and_classes_are_counted_over_all_sites(tmp_path: Path) -> None:
    """A site with a single class does not reveal how many classes there are."""
    np.savez(tmp_path / "a.npz", inputs=np.zeros((2, 3)), labels=np.zeros(2, int))
    np.savez(tmp_path / "b.npz", train_inputs=np.zeros((2, 3)), train_labels=np.array([1, 2]))
    assert [read_records(tmp_path / f"{name}.npz").classes for name in "ab"] == [None, None]
    assert read_site_files([tmp_path / "*.npz"], None, EMPTY_SCHEMA).agents[1][1].tolist() == [1, 2]
    np.savez(tmp_path / "c.npz", inputs=np.zeros((2, 3)), labels=np.zeros(2, int), classes=3)
    assert read_records(tmp_path / "c.npz").classes == 3
    for arrays, message in (
        ({"inputs": np.zeros((2, 3))}, "expected an array 'labels' or 'targets', got inputs"),
        (
            {"inputs": np.zeros((2, 3)), "labels": np.array([0, 5]), "classes": np.array("x")},
            "one whole number",
        ),
    ):
        np.savez(tmp_path / "d.npz", **arrays)
        with pytest.raises(DataError, match=message):
            read_records(tmp_path / "d.npz")
    with pytest.raises(DataError, match=r"expected no schema for .npz"):
        read_records(tmp_path / "a.npz", SCHEMA)


def test_dates_are_not_numbers(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"when": pandas.to_datetime(["2020-01-01"]), "y": ["a"]})
    frame.to_parquet(tmp_path / "a.parquet")
    schema = Schema.of({"target": "y", "classes": ["a", "b"], "ranges": {"when": [0, 1]}})
    for read in (
        lambda: records_of_frame(frame, schema, "frame"),
        lambda: read_records(tmp_path / "a.parquet", schema),
    ):
        with pytest.raises(DataError, match="record 0: expected a number in 'when', got"):
            read()


def test_patterns_name_sites_in_sorted_order(csv: Any, tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.csv"):
        csv(HEADER, name)
    assert [path.name for path in expand_paths([f"{tmp_path}/*.csv"])] == ["a.csv", "b.csv", "c.csv"]
    with pytest.raises(DataError, match="found none"):
        expand_paths([f"{tmp_path}/*.parquet"])
    with pytest.raises(DataError, match=r"got .*a.csv twice. A record may be at one agent only"):
        expand_paths([tmp_path / "a.csv", f"{tmp_path}/a*"])


def test_a_preview_shows_the_content_of_each_column(csv: Any) -> None:
    previews = {preview.column: preview for preview in preview_columns(csv(HEADER + ROWS + "dan,?,,no\n"))}
    age, job = previews["age"], previews["job"]
    assert (age.kind, age.missing, age.least, age.largest) == ("number", 1, 0.0, 100.0)
    assert job == ColumnPreview(column="job", kind="text", missing=1, values=("clerk", "nurse", "pilot"))


def test_files_and_frames_encode_a_record_alike(tmp_path: Path) -> None:
    """If a value is missing, pandas writes integers as 1.0: they remain the same categories."""
    schema = Schema.of(
        {
            "target": "ill",
            "classes": [0, 1],
            "categories": {"ward": ["1", "2"], "new": [True, False]},
            "missing": {"ward": "other"},
        }
    )
    frame = {"ward": [1.0, 2.0, None, 3.0], "new": [True, False, True, True], "ill": [0.0, 1.0, 0.0, 1.0]}
    place = tmp_path / "site.csv"
    place.write_text("ward,new,ill\n1.0,True,0.0\n2.0,False,1.0\n,True,0\n3.0,true,1\n", encoding="utf-8")
    from_file, from_frame = read_records(place, schema), records_of_frame(frame, schema, "site")
    assert from_file.inputs.tolist() == from_frame.inputs.tolist()
    assert (
        from_file.inputs.sum(1).tolist() == [2, 2, 2, 2] and from_file.inputs[3].tolist()[-1] == 1
    )  # ward 3
    assert from_file.targets.tolist() == from_frame.targets.tolist() == [0, 1, 0, 1]


def test_a_site_named_by_a_link_is_the_same_site(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x", encoding="utf-8")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"twice\. A record may be at one agent only"):
        expand_paths([tmp_path / "a.csv", tmp_path / "link.csv"])


def test_records_of_an_agent_are_refused_as_test_records(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("age,ill\n30,no\n60,yes\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "b.csv")
    schema = {"target": "ill", "classes": ["no", "yes"], "ranges": {"age": [0, 100]}}
    agents = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for test in (agents[1], tmp_path / "link.csv", f"{tmp_path}/../{tmp_path.name}/a.csv"):
        with pytest.raises(DataError, match="no agent holds"):
            read_site_files(agents, test, Schema.of(schema))
