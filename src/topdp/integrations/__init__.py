"""topdp inside other libraries. A module needs the library that it is for; topdp needs none of them."""

from topdp.errors import InputError


class MissingPackageError(InputError, ImportError):
    """A library that an integration needs, and that is not installed."""
