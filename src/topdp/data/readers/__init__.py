"""Read a user's own records, from files and frames, as arrays: tables, text, images, torch data sets."""
