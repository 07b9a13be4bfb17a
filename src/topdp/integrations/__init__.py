"""topdp inside other libraries. A module needs the library that it is for; topdp needs none of them."""
