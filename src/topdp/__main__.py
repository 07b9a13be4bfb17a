"""`python -m topdp` runs the command `topdp`."""

from topdp.cli.app import main

main()
