"""Who runs now: the queue in front of the engine and what guards it."""
