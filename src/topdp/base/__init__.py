"""What every package may use: files, TOML text, array types, number checks, progress."""
