"""Model files: what exists (catalogue), where it comes from (sources), how it gets here whole (pull)."""
