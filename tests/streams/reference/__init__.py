"""Operators of streams, one record at a time, written from the rules alone."""
