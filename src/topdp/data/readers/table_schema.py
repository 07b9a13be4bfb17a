"""Schemas: what is publicly known of a user's records, stated before they are read.

A schema states ranges, categories, classes, fills and sizes because they must not come from private records:
a mean, a list of values or a vocabulary taken from them discloses something about them, and no account would
count it. This module reads no records.

**Guarantees.** Everything that a reader does to a record follows from the schema and that record alone, so
preparing records costs no privacy. This holds if the schema itself was written without looking at them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from topdp.base import toml_text
from topdp.data.readers.schema_keys import OTHER_CATEGORY, SCHEMA_KEYS, SchemaError, TextColumn, ValueRange


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is publicly known of records.

    For a table: `target`, the column or columns to predict, with `classes` if it is one of a public list, and
    every other column in exactly one of `ranges`, `categories`, `text` and `ignore`. For folders of images:
    `classes`, `size` and `channels`.

    >>> schema = Schema(target="ill", classes=("no", "yes"), ranges={"age": (0, 100)}, missing={"age": 40})
    >>> schema.inputs, schema.width
    (('age',), 1)
    >>> Schema.of({"target": "ill", "range": {"age": [0, 100]}})
    Traceback (most recent call last):
        ...
    topdp.data.readers.schema_keys.SchemaError: schema: no such key 'range'. Did you mean 'ranges'?
    """

    target: str | tuple[str, ...] = ""
    classes: tuple[str, ...] | None = None
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text: TextColumn | None = None
    missing: Mapping[str, float | str] = field(default_factory=dict)
    indicators: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    delimiter: str | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        for key, clean in SCHEMA_KEYS.items():
            object.__setattr__(self, key, clean(key, getattr(self, key)))
        self._check()

    @staticmethod
    def of(given: Schema | Mapping[str, Any] | str | os.PathLike[str], origin: str = "schema") -> Schema:
        """Return a schema from a schema, its keys, or the path of a TOML file with them."""
        if isinstance(given, Schema):
            return given
        if not isinstance(given, Mapping):
            return Schema.of(read_schema_keys(given), str(given))
        key_names = [attribute.name for attribute in fields(Schema)]
        for key in given:
            if key not in key_names:
                near = difflib.get_close_matches(str(key), key_names, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(key_names)}."
                raise SchemaError(f"{origin}: no such key {key!r}. {hint}")
        try:
            return Schema(**given)
        except SchemaError as error:
            raise SchemaError(f"{origin}: {error}") from None

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns of a model: numbers first, then categories, each sorted by name.

        The stated order is not used: a manifest is identified by a hash that ignores the order of keys, and
        all agents must have the same number in the same place.
        """
        if self.text is not None:
            return (self.text.column,)
        named = (*sorted(self.ranges), *sorted(self.categories))
        return tuple(name for name in named if name not in self.targets)

    @property
    def width(self) -> int:
        """How many numbers one record becomes."""
        if self.text is not None:
            return self.text.length
        return sum(len(self.names(column)) for column in self.inputs)

    def names(self, column: str) -> list[str]:
        """Return the names of the numbers that `column` becomes."""
        names = [column]
        if column in self.categories:
            names = [f"{column}={value}" for value in (*self.categories[column], OTHER_CATEGORY)]
        return [*names, f"{column} is missing"] if column in self.indicators else names

    def tree(self) -> dict[str, Any]:
        """Return the keys that are set, ready for TOML and JSON."""
        keys: dict[str, Any] = {}
        for attribute in fields(Schema):
            value = getattr(self, attribute.name)
            if isinstance(value, TextColumn):
                value = {part.name: getattr(value, part.name) for part in fields(TextColumn)}
            if value not in (None, (), {}, ""):
                keys[attribute.name] = _plain_value(value)
        return keys

    def digest(self) -> str:
        """Return the SHA-256 of what is stated; the same on every machine and in whatever order columns are
        stated.
        """
        text = json.dumps(self.tree(), ensure_ascii=True, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"topdp schema\n" + text.encode("ascii")).hexdigest()

    def _check(self) -> None:
        if self.text is not None and (set(self.ranges) | set(self.categories)) - set(self.targets):
            raise SchemaError(
                "text: expected no other inputs besides a text column, got ranges or categories. Move them "
                "to ignore: a model takes one tensor, of tokens or of numbers."
            )
        used = [self.text.column] if self.text is not None else []
        used += [*self.ranges, *self.categories, *self.ignore]
        for name in (*self.targets, *used):
            if not name and (used or self.targets != ("",)):
                raise SchemaError("target: expected the name of the column to predict, got none.")
        repeated = {name for name in used if used.count(name) > 1}
        repeated |= set(self.targets) & {*self.ignore, *(() if self.text is None else (self.text.column,))}
        if repeated:
            raise SchemaError(
                f"expected every column in one place, got {', '.join(map(repr, sorted(repeated)))} in two."
            )
        if self.classes is not None:
            if len(self.targets) > 1:
                raise SchemaError("classes: expected a single target column, got several.")
            if set(self.targets) & (set(self.ranges) | set(self.categories)):
                raise SchemaError(
                    f"expected the target {self.target!r} in classes only, got it as a column too."
                )
        elif set(self.targets) & set(self.categories):
            raise SchemaError(
                f"expected the values of the target {self.target!r} in classes, not categories."
            )
        for key, names in (("missing", self.missing), ("indicators", self.indicators)):
            unknown = sorted(set(names) - set(self.inputs))
            if unknown:
                raise SchemaError(f"{key}: expected columns of ranges or categories, got {unknown[0]!r}.")
        for column, fill in self.missing.items():
            allowed = (*self.categories.get(column, ()), OTHER_CATEGORY)
            if column in self.categories and fill not in allowed:
                raise SchemaError(
                    f"missing.{column}: expected one of its categories or {OTHER_CATEGORY!r}, got {fill!r}."
                )
            if column in self.ranges and not isinstance(fill, int | float):
                raise SchemaError(f"missing.{column}: expected a number, got {fill!r}.")
        if without := sorted(set(self.indicators) - set(self.missing)):
            raise SchemaError(f"indicators: expected columns with a fill in missing, got {without[0]!r}.")


def read_schema_keys(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the keys in a TOML file, unchecked."""
    try:
        return toml_text.parse_toml(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"Expected a readable schema (TOML) at {path}: {error}") from None
    except ValueError as error:
        raise SchemaError(f"Expected TOML in {path}: {error}") from None


def schema_template(columns: Iterable[str], schema: Schema | None = None) -> str:
    """Return a schema for `columns` to be filled in. It contains only names of columns: names are public,
    values are not.

    >>> print(schema_template(["age", "job"]))
    target = ""     # the column to predict
    classes = []    # its values; remove this line if it is a number
    ignore = []     # columns that are not used
    [ranges]        # numbers: the smallest and the largest, from public knowledge
    age = []
    job = []
    [categories]    # or move a column here, and list its values
    [missing]       # what replaces a missing value
    """
    stated = Schema() if schema is None else schema
    unmentioned = [name for name in columns if name not in {*stated.targets, *stated.inputs, *stated.ignore}]
    lines = [
        f"target = {_toml_value(stated.target)}     # the column to predict",
        f"classes = {_toml_value(stated.classes or ())}    # its values; remove this line if it is a number",
        f"ignore = {_toml_value(stated.ignore)}     # columns that are not used",
        "[ranges]        # numbers: the smallest and the largest, from public knowledge",
        *(f"{_toml_key(name)} = {_toml_value(limits)}" for name, limits in stated.ranges.items()),
        *(f"{_toml_key(name)} = []" for name in unmentioned),
        "[categories]    # or move a column here, and list its values",
        *(f"{_toml_key(name)} = {_toml_value(values)}" for name, values in stated.categories.items()),
        "[missing]       # what replaces a missing value",
        *(f"{_toml_key(name)} = {_toml_value(fill)}" for name, fill in stated.missing.items()),
    ]
    return "\n".join(lines)


def _toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_value(inner) for key, inner in value.items()}
    return [_plain_value(inner) for inner in value] if isinstance(value, tuple) else value
