"""What a user chooses: the configuration, its presets, the named methods; and how names become objects."""
