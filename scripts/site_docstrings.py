"""Show the examples of docstrings as code on the documentation site; mkdocs.yml names this file."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


def with_examples_as_code(text: str) -> str:
    """Put every example between fences, from its first `>>>` to the empty line after its output.

    >>> with_examples_as_code("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Two.']
    """
    return re.sub(
        r"^>>> .*?(?=\n\s*\n|\Z)",
        lambda example: f"```pycon\n{example[0].rstrip()}\n```",
        text,
        flags=re.M | re.S,
    )


class Examples(Extension):
    """The extension that changes docstrings as they are collected."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples_as_code(obj.docstring.value)
