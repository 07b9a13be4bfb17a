"""The commands, one short function each: arguments in, tables and exit codes out; `cli.py` names them."""
