"""The HTTP face: OpenAI-compatible API, operations, and the chat page. Sees models only through `generation`."""
