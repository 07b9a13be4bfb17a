"""Table schemas, the public description of records: validated key by key."""

from __future__ import annotations

import doctest
import tomllib
from pathlib import Path
from typing import Any

import pytest

from topdp.data.readers import _encoding as encoding
from topdp.data.readers import raw_tables, table_schema, token_ids
from topdp.data.readers.table_schema import Schema, SchemaError, schema_template
from topdp.errors import InputError

WHOLE: dict[str, Any] = {
    "target": "ill",
    "classes": ["no", "yes"],
    "ranges": {"age": [0, 100], "weight": [0, 200]},
    "categories": {"job": ["clerk", "nurse"]},
    "missing": {"age": 40, "job": "other"},
    "indicators": ["age"],
    "ignore": ["name"],
}


def test_a_file_and_a_dictionary_give_the_same_schema(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(
        'target = "ill"\nclasses = ["no", "yes"]\nindicators = ["age"]\nignore = ["name"]\n'
        '[ranges]\nage = [0, 100]\nweight = [0, 200]\n[categories]\njob = ["clerk", "nurse"]\n'
        '[missing]\nage = 40\njob = "other"\n',
        encoding="utf-8-sig",
    )
    from_file, from_keys = Schema.of(path), Schema.of(WHOLE)
    assert from_file == from_keys
    assert Schema.of(from_keys.tree()) == from_keys
    assert from_keys.inputs == ("age", "weight", "job")


def test_the_order_in_which_columns_are_stated_does_not_matter() -> None:
    """The hash of a manifest ignores it: two agents could hold the same manifest in another order."""
    turned = {**WHOLE, "ranges": {"weight": [0, 200], "age": [0, 100]}}
    one, other = Schema.of(turned), Schema.of(WHOLE)
    assert one.tree() == other.tree() and one.inputs == other.inputs
    records = {"weight": [0.0], "age": [100.0], "job": ["nurse"], "ill": ["no"], "name": ["x"]}
    made = [encoding.encode_table(raw_tables.read_frame(records), each)[0].tolist() for each in (one, other)]
    assert made[0] == made[1] == [[1.0, 0.0, -1.0, 0.0, 1.0, 0.0]]
    swapped = {**WHOLE, "categories": {"job": ["nurse", "clerk"]}}
    assert Schema.of(swapped).tree() != other.tree()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clases": ["a", "b"]}, "no such key 'clases'. Did you mean 'classes'"),
        ({"classes": ["yes"]}, r"classes: .*at least 2 items.*got \['yes'\]"),
        ({"classes": ["yes", "yes"]}, "classes: expected every value once"),
        ({"classes": "yes"}, "classes: expected a list, got 'yes'"),
        ({"classes": [0.5, 1.5]}, "classes: expected texts or integers"),
        ({"target": ["ill", "well"]}, "classes: expected a single target column"),
        ({"target": "age"}, "expected the target 'age' in classes only"),
        ({"target": []}, "target: expected the name of the column"),
        ({"target": "job", "classes": None}, "expected the values of the target 'job' in classes"),
        ({"target": "name"}, "expected each column under one key, got 'name' under two"),
        ({"ranges": {"age": [100, 0]}}, r"ranges.age: expected \[least, largest\]"),
        ({"ranges": {"age": [0]}}, r"ranges.age: expected \[least, largest\]"),
        ({"ranges": {"age": [0, float("inf")]}}, r"ranges.age: expected \[least, largest\]"),
        ({"ranges": {"age": []}}, "two numbers of public knowledge"),
        ({"ranges": ["age"]}, "ranges: .*dictionary, got"),
        ({"categories": {"job": ["other"]}}, "without 'other', which is added"),
        ({"categories": {"job": []}}, "categories.job: expected the public values"),
        ({"categories": {"age": ["a"]}}, "got 'age' under two"),
        ({"missing": {"job": "pilot"}}, "missing.job: expected one of its categories or 'other'"),
        ({"missing": {"age": "old"}}, "missing.age: expected a number, got 'old'"),
        ({"missing": {"age": float("nan")}}, "missing.age: expected a number or a category"),
        ({"missing": {"height": 3}}, "missing: expected columns of ranges or categories, got 'height'"),
        ({"missing": {}}, "indicators: expected columns with a fill in missing, got 'age'"),
        ({"text": {"column": "note"}}, "text: expected no other inputs besides a text column"),
        ({"delimiter": ";;"}, "delimiter: .*at most 1 character"),
        ({"channels": 4}, "channels: .*1 or 3, got 4"),
        ({"size": [8]}, r"size.*required, got \[8\]"),
    ],
)
def test_a_wrong_key_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema.of({**WHOLE, **change})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"column": "note", "size": 3}, "no such key 'text.size'"),
        ({"length": 3}, "text.column: .*required"),
        ({"column": "note", "length": 0}, "text.length: .*greater than 0"),
        ({"column": "note", "vocabulary": 2}, "text.vocabulary: expected at least 3 ids"),
        ({"column": "note", "unit": "byte"}, "text.unit: .*'word' or 'character'"),
    ],
)
def test_a_column_of_text_is_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema.of({"target": "ill", "classes": ["no", "yes"], "text": given})


def test_files_that_are_not_a_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("target = ")
    for path, message in (
        (tmp_path / "absent.toml", "readable schema"),
        (tmp_path / "broken.toml", "TOML in"),
    ):
        with pytest.raises(InputError, match=message):
            Schema.of(path)


def test_a_template_is_toml_that_is_refused_until_filled_in() -> None:
    filled = schema_template(["ill", "age", "place of birth", "job"], Schema.of(WHOLE))
    tree = tomllib.loads(filled)
    assert tree["ranges"]["age"] == [0, 100] and tree["ranges"]["place of birth"] == []
    with pytest.raises(SchemaError, match="place of birth"):
        Schema.of(tree)


@pytest.mark.parametrize("module", [table_schema, raw_tables, token_ids], ids=lambda module: module.__name__)
def test_examples_in_the_docstrings_run(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0
