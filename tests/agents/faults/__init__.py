"""A seeded injector of faults: federations in one process, in virtual time. `injector.run` is the door."""
