"""A seeded injector of faults for federations in one process, in virtual time; start with `injector.run`."""
