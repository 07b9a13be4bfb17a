"""Schemas: what is publicly known of a user's records, stated before they are read.

A schema states ranges, categories, classes, fills and sizes, because they must not come from private records.
A mean, a list of values or a vocabulary that is computed from private records discloses something about them,
and no account would count it. This module reads no records.

**Guarantees.** Everything that a reader does to a record follows from the schema and that record alone, so
preparing records costs no privacy. This holds if the schema itself was written without looking at them.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, ValidationError, model_validator

from topdp.base import toml_text
from topdp.errors import InputError

OTHER_CATEGORY = "other"
"""The category of all values that are not listed; also the fill that gives a missing value this category."""


class SchemaError(InputError):
    """An unusable schema. The message names the key, what was expected and what was received."""


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list")
    if not all(isinstance(item, str | int) for item in value):
        raise ValueError("expected texts or integers")
    texts = tuple(str(int(item) if isinstance(item, bool) else item) for item in value)
    if len(set(texts)) != len(texts):
        raise ValueError("expected every value once")
    return texts


def _target(value: Any) -> str | tuple[str, ...]:
    target = value if isinstance(value, str) else _texts(value)
    if target == ():
        raise ValueError("expected the name of the column to predict, or several")
    return target


def _range(value: Any) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(high - low) and low < high):
        raise ValueError("expected [least, largest], two numbers of public knowledge")
    return low, high


def _categories(value: Any) -> tuple[str, ...]:
    values = _texts(value)
    if not values or OTHER_CATEGORY in values:
        raise ValueError(f"expected the public values without {OTHER_CATEGORY!r}, which is added")
    return values


def _fill(value: Any) -> float | str:
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("expected a number or a category")
    return value


def _vocabulary(value: Any) -> int | tuple[str, ...]:
    vocabulary = value if isinstance(value, int) else _texts(value)
    if (vocabulary if isinstance(vocabulary, int) else len(vocabulary) + 2) < 3:
        raise ValueError("expected at least 3 ids, or a list of words")
    return vocabulary


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
ValueRange = Annotated[tuple[float, float], BeforeValidator(_range)]


@final
class TextColumn(BaseModel, frozen=True, extra="forbid", strict=True):
    """A column of text that becomes token ids: hashed into `vocabulary` ids, or numbered by a public list."""

    column: str
    length: PositiveInt = 64
    vocabulary: Annotated[int | tuple[str, ...], BeforeValidator(_vocabulary)] = 4096
    unit: Literal["word", "character"] = "word"

    @property
    def ids(self) -> int:
        """The number of token ids."""
        return self.vocabulary if isinstance(self.vocabulary, int) else len(self.vocabulary) + 2


@final
class Schema(BaseModel, frozen=True, extra="forbid"):
    """The public facts about records.

    For a table, `target` is the column to predict, or the columns. If the target is one of several classes,
    `classes` lists them. Every other column belongs to exactly one of `ranges`, `categories`, `text` and
    `ignore`. For folders of images, a schema may state `classes`, `size` and `channels`.

    >>> schema = Schema(target="ill", classes=("no", "yes"), ranges={"age": (0, 100)}, missing={"age": 40})
    >>> schema.inputs
    ('age',)
    >>> Schema.of({"target": "ill", "range": {"age": [0, 100]}})
    Traceback (most recent call last):
        ...
    topdp.data.readers.table_schema.SchemaError: schema: no such key 'range'. Did you mean 'ranges'?
    """

    target: Annotated[str | tuple[str, ...], BeforeValidator(_target)] = ""
    classes: Annotated[Texts, Field(min_length=2)] | None = None
    ranges: dict[str, ValueRange] = {}
    categories: dict[str, Annotated[tuple[str, ...], BeforeValidator(_categories)]] = {}
    text: TextColumn | None = None
    missing: dict[str, Annotated[Any, BeforeValidator(_fill)]] = {}
    indicators: Texts = ()
    ignore: Texts = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    size: (
        Annotated[
            tuple[PositiveInt, PositiveInt],
            BeforeValidator(lambda value: (value, value) if isinstance(value, int) else value),
        ]
        | None
    ) = None
    """[height, width] in pixels; one number for both."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for colour."""

    def __init__(self, **keys: Any) -> None:
        try:
            super().__init__(**keys)
        except ValidationError as error:
            raise SchemaError(_explain(error.errors()[0])) from None

    @staticmethod
    def of(given: Schema | Mapping[str, Any] | str | os.PathLike[str], origin: str = "schema") -> Schema:
        """Return the schema `given`, or the schema with the keys in `given`, or in the TOML file `given`.

        `origin` names the schema in error messages; for a file, messages name its path instead.
        """
        if isinstance(given, Schema):
            return given
        if not isinstance(given, Mapping):
            return Schema.of(read_schema_keys(given), str(given))
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

        The order in which a schema states columns is not used. A manifest is identified by a hash that
        ignores this order, and all agents must have the same number in the same position.
        """
        if self.text is not None:
            return (self.text.column,)
        named = (*sorted(self.ranges), *sorted(self.categories))
        return tuple(name for name in named if name not in self.targets)

    @property
    def input_length(self) -> float | None:
        """The length of a usual input, or None for text and images.

        Numbers are spread over [-1, 1], and a category is one 1.

        >>> schema = Schema(target="ill", ranges={"age": (0, 100)}, categories={"job": ("clerk", "nurse")})
        >>> round(schema.input_length, 2)
        1.15
        """
        if not (numbers_and_categories := set(self.inputs) & {*self.ranges, *self.categories}):
            return None
        return math.sqrt(sum(1.0 if name in self.categories else 1 / 3 for name in numbers_and_categories))

    def tree(self) -> dict[str, Any]:
        """Return the keys that are not empty, as values for TOML and JSON."""
        keys = self.model_dump(mode="json")
        return {key: value for key, value in keys.items() if value not in (None, [], {}, "")}

    @model_validator(mode="after")
    def _check(self) -> Schema:
        encoded, text = {*self.ranges, *self.categories}, [] if self.text is None else [self.text.column]
        if text and encoded - set(self.targets):
            raise ValueError(
                "text: expected no other inputs besides a text column, got ranges or categories. Move their "
                "columns to ignore, because a model takes one tensor, either of tokens or of numbers."
            )
        used = [*text, *self.ranges, *self.categories, *self.ignore]
        if "" in (*self.targets, *used) and (used or self.targets != ("",)):
            raise ValueError("target: expected the name of the column to predict, got none.")
        repeated = {name for name in used if used.count(name) > 1}
        repeated |= set(self.targets) & {*self.ignore, *text}
        if repeated:
            raise ValueError(
                f"expected each column under one key, got {', '.join(map(repr, sorted(repeated)))} under two."
            )
        if self.classes is not None:
            if len(self.targets) > 1:
                raise ValueError("classes: expected a single target column, got several.")
            if encoded & set(self.targets):
                raise ValueError(
                    f"expected the target {self.target!r} in classes only, got it among the columns too."
                )
        elif set(self.targets) & set(self.categories):
            raise ValueError(f"expected the values of the target {self.target!r} in classes, not categories.")
        for key, names in (("missing", self.missing), ("indicators", self.indicators)):
            unknown = sorted(set(names) - set(self.inputs))
            if unknown:
                raise ValueError(f"{key}: expected columns of ranges or categories, got {unknown[0]!r}.")
        for column, fill in self.missing.items():
            allowed = (*self.categories.get(column, ()), OTHER_CATEGORY)
            if column in self.categories and fill not in allowed:
                raise ValueError(
                    f"missing.{column}: expected one of its categories or {OTHER_CATEGORY!r}, got {fill!r}."
                )
            if column in self.ranges and not isinstance(fill, int | float):
                raise ValueError(f"missing.{column}: expected a number, got {fill!r}.")
        if without := sorted(set(self.indicators) - set(self.missing)):
            raise ValueError(f"indicators: expected columns with a fill in missing, got {without[0]!r}.")
        return self


EMPTY_SCHEMA = Schema()
"""A schema that states nothing."""


def _explain(error: Any) -> str:
    """Return a message for an error of pydantic: the key, what was expected and what was received."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Schema.model_fields, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(Schema.model_fields)}."
        return f"no such key {key!r}. {hint}"
    reason = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    return f"{key}: {reason}, got {error['input']!r:.80}." if key else reason


def read_schema_keys(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the keys in a TOML file. Raise SchemaError if it is not TOML; the keys are not checked."""
    try:
        return toml_text.parse_toml(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"Expected a readable schema (TOML) at {path}: {error}") from None
    except ValueError as error:
        raise SchemaError(f"Expected TOML in {path}: {error}") from None


def schema_template(columns: Iterable[str], schema: Schema = EMPTY_SCHEMA) -> str:
    """Return the text of a schema for `columns`, in which a user fills in the values.

    It contains what `schema` states already. Of the table it contains only the names of columns, because
    names are public and values are not.

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
    unmentioned = [name for name in columns if name not in {*schema.targets, *schema.inputs, *schema.ignore}]
    lines = [
        f"target = {_toml_value(schema.target)}     # the column to predict",
        f"classes = {_toml_value(schema.classes or ())}    # its values; remove this line if it is a number",
        f"ignore = {_toml_value(schema.ignore)}     # columns that are not used",
        "[ranges]        # numbers: the smallest and the largest, from public knowledge",
        *(f"{_toml_key(name)} = {_toml_value(limits)}" for name, limits in schema.ranges.items()),
        *(f"{_toml_key(name)} = []" for name in unmentioned),
        "[categories]    # or move a column here, and list its values",
        *(f"{_toml_key(name)} = {_toml_value(values)}" for name, values in schema.categories.items()),
        "[missing]       # what replaces a missing value",
        *(f"{_toml_key(name)} = {_toml_value(fill)}" for name, fill in schema.missing.items()),
    ]
    return "\n".join(lines)


def _toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
