"""What turns token ids into more token ids: one protocol, several libraries, one thread that owns them."""
