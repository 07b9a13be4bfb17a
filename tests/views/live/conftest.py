"""A fixture that serves live pages."""

from contextlib import ExitStack

import pytest
from serving import served


@pytest.fixture
def serve():
    """`served` until the end of the test. If a test requests it before `open_page`, it outlives the pages."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(served(*arguments, **options))
