"""Modules that every package may use: files, TOML text, array types, number checks, progress."""
