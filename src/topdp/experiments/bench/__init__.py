"""How fast a private round is here: beside other ways to do the same, beside its floors, and as it grows."""
