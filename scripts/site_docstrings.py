"""How docstrings are shown on the documentation site: their examples as code. mkdocs.yml names it."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


def with_examples_as_code(text: str) -> str:
    """Fences round every example, from its first `>>>` to the empty line behind what it prints.

    >>> with_examples_as_code("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Two.']
    """
    return re.sub(
        r"^>>> .*?(?=\n\s*\n|\Z)",
        lambda found: f"```pycon\n{found[0].rstrip()}\n```",
        text,
        flags=re.M | re.S,
    )


class Examples(Extension):
    """Changes docstrings as they are collected."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples_as_code(obj.docstring.value)
