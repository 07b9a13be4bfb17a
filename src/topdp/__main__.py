"""python -m topdp: the same as the command topdp."""

from topdp.cli.app import main

main()
