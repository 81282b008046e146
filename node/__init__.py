"""Outpost: a self-contained inference node. Start reading at `runtime.py`; README has "How a token travels"."""

__version__ = "0.1.0"
