"""System prompts that the operator names: warm from the start, for every tenant, before anybody asked.

What is pinned is what all conversations with such a system prompt begin with, the chat template's own words included:
the tokens that two conversations with different questions have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from node.errors import InvalidRequest, SettingsError
from node.generation import Model

MOST, MOST_BYTES = 64, 1 << 20
_FILE = "@"


def texts(templates: Sequence[str]) -> tuple[str, ...]:
    """Each as it stands, or what is in the file whose path follows an `@`; raises SettingsError."""
    if len(templates) > MOST:
        raise SettingsError(f"prewarm.templates names {len(templates)} texts; {MOST} are the most.")
    return tuple(_read(each[1:]) if each.startswith(_FILE) else _checked(each, "a text") for each in templates)


def beginning(model: Model, text: str) -> list[int]:
    """The token ids of every prompt with this system prompt, as far as they are alike; raises SettingsError."""
    if not model.info.can_chat:
        return model.encode(text)[: model.info.context - 1]
    system = {"role": "system", "content": text}
    try:
        one, other = (model.chat([system, {"role": "user", "content": said}]) for said in ("Hello", "1"))
    except InvalidRequest as error:
        raise SettingsError(f"A text of prewarm.templates cannot be a system prompt here: {error.message}") from error
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in alike][: model.info.context - 1]


def _read(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MOST_BYTES + 1)  # what is no file has no size to be asked for
        return _checked(content.decode(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"Cannot read the template {path}: {error}.", hint="See prewarm.templates.") from error


def _checked(text: str, name: str) -> str:
    if not text.strip():
        raise SettingsError(f"In prewarm.templates, {name} is empty.")
    if len(text.encode()) > MOST_BYTES:
        raise SettingsError(f"In prewarm.templates, {name} is larger than {MOST_BYTES} bytes.")
    return text
