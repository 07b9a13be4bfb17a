"""The privacy statement: of a simulated run, or of one organisation's part in a federation."""
