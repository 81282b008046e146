"""From tokens to text that readers follow: whole characters, stop strings, one generation with many readers."""
