"""The live page over runs and agents. Reads files and what agents publish; changes nothing."""
