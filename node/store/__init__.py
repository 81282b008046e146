"""What must outlive the process: one SQLite file, one thread that writes it.

Nothing here knows what the rows mean to others: `streams` keeps generations and their tokens; the outbox and the prompt
history get rooms of their own beside it.
"""
