"""Readers of a user's own records, from files and frames to arrays: tables, text, images, torch data sets."""
