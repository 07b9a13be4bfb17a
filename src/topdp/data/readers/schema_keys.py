"""The keys of a schema: which values each accepts, and how they are stored. Reads no records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from topdp.errors import InputError

OTHER_CATEGORY = "other"
"""The column of values that are not a listed category, and the fill that stands for it."""
ValueRange = tuple[float, float]


class SchemaError(InputError):
    """An unusable schema: which key, what was expected, and what came."""


@dataclass(frozen=True)
class TextColumn:
    """A column of text that becomes token ids: hashed into `vocabulary` ids, or numbered by a public list."""

    column: str
    length: int = 64
    vocabulary: int | tuple[str, ...] = 4096
    unit: str = "word"


def _names(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise SchemaError(f"{key}: expected a list, got {value!r:.80}.")
    if any(isinstance(item, float) or not isinstance(item, str | int) for item in value):
        raise SchemaError(f"{key}: expected texts or integers, got {value!r:.80}.")
    texts = tuple(str(int(item) if isinstance(item, bool) else item) for item in value)
    if len(set(texts)) != len(texts):
        raise SchemaError(f"{key}: expected every value once, got {value!r:.80}.")
    return texts


def _target(key: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    names = _names(key, value)
    if not names:
        raise SchemaError(f"{key}: expected the name of the column to predict, or several, got none.")
    return names


def _classes(key: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = _names(key, value)
    if len(texts) < 2:
        raise SchemaError(f"{key}: expected at least 2 classes, got {len(texts)}: nothing can be learnt.")
    return texts


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SchemaError(f"{key}: expected columns and what is known of each, got {value!r:.80}.")
    return dict(value)


def _ranges(key: str, value: Any) -> dict[str, ValueRange]:
    checked = {}
    for column, limits in _mapping(key, value).items():
        try:
            low, high = (float(limit) for limit in limits)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(high - low) and low < high):
            raise SchemaError(
                f"{key}.{column}: expected [least, largest], two numbers of public knowledge, got "
                f"{limits!r:.80}."
            )
        checked[column] = (low, high)
    return checked


def _categories(key: str, value: Any) -> dict[str, tuple[str, ...]]:
    checked = {name: _names(f"{key}.{name}", values) for name, values in _mapping(key, value).items()}
    for column, values in checked.items():
        if not values or OTHER_CATEGORY in values:
            raise SchemaError(
                f"{key}.{column}: expected the public values without {OTHER_CATEGORY!r}, which is added, got "
                f"{list(values)!r:.80}."
            )
    return checked


def _missing(key: str, value: Any) -> dict[str, float | str]:
    checked = _mapping(key, value)
    for column, fill in checked.items():
        if not isinstance(fill, str | int | float) or (isinstance(fill, float) and not math.isfinite(fill)):
            raise SchemaError(f"{key}.{column}: expected a number or a category, got {fill!r:.80}.")
    return checked


def _text(key: str, value: Any) -> TextColumn | None:
    if value is None or isinstance(value, TextColumn):
        text = value
    else:
        keys = _mapping(key, value)
        field_names = [field.name for field in fields(TextColumn)]
        if unknown := sorted(set(keys) - set(field_names)):
            raise SchemaError(f"{key}: no such key {unknown[0]!r}. Known: {', '.join(field_names)}.")
        if "column" not in keys:
            raise SchemaError(f'{key}: expected column = "name", got none.')
        if isinstance(keys.get("vocabulary"), list | tuple):
            keys["vocabulary"] = _names(f"{key}.vocabulary", keys["vocabulary"])
        text = TextColumn(**keys)
    if text is None:
        return None
    words = text.vocabulary if isinstance(text.vocabulary, int) else len(text.vocabulary) + 2
    if not isinstance(text.length, int) or text.length < 1 or words < 3:
        raise SchemaError(f"{key}: expected length >= 1 and vocabulary >= 3, got {text.length} and {words}.")
    if text.unit not in ("word", "character"):
        raise SchemaError(f"{key}.unit: expected 'word' or 'character', got {text.unit!r}.")
    return text


def _delimiter(key: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) != 1):
        raise SchemaError(f"{key}: expected one character, got {value!r:.80}.")
    return value


def _size(key: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(item, int) and item >= 1 for item in pair):
        raise SchemaError(f"{key}: expected [height, width] in pixels, got {value!r:.80}.")
    return pair


def _channels(key: str, value: Any) -> int | None:
    if value not in (None, 1, 3):
        raise SchemaError(f"{key}: expected 1 (grey) or 3 (colour), got {value!r:.80}.")
    return None if value is None else int(value)


SCHEMA_KEYS: dict[str, Callable[[str, Any], Any]] = {
    "target": _target,
    "classes": _classes,
    "ranges": _ranges,
    "categories": _categories,
    "text": _text,
    "missing": _missing,
    "indicators": _names,
    "ignore": _names,
    "delimiter": _delimiter,
    "size": _size,
    "channels": _channels,
}
"""Per key, the function that validates a given value and returns the stored form."""
