"""Measurements of the real thing: what `outpost bench` runs."""
