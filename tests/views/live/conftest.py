"""Live pages as a fixture."""

from contextlib import ExitStack

import pytest
from serving import served


@pytest.fixture
def serve():
    """`served`, until the test is over. Asked for before `open_page`, it outlives the pages of a test."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(served(*arguments, **options))
