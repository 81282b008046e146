"""Configured system prompts: read, refused, and turned into what every prompt with them begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.errors import InvalidRequest, SettingsError
from node.prewarm.templates import MOST, MOST_BYTES, beginning, texts
from tests.support.service import BEGIN, INFO, ByteModel


def test_texts_stand_as_they_are_and_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "kiosk.txt").write_text("You are a kiosk.\n")
    assert texts(("You answer.", f"@{tmp_path / 'kiosk.txt'}")) == ("You answer.", "You are a kiosk.\n")
    assert texts(()) == ()


def test_what_is_no_template_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (MOST_BYTES + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for wrong, complaint in (
        (f"@{tmp_path / 'none'}", "Cannot read the template"),
        (f"@{tmp_path}", "Cannot read the template"),
        (f"@{tmp_path / 'binary'}", "Cannot read the template"),
        (f"@{tmp_path / 'big'}", "larger than"),
        ("  ", "empty"),
        ("x" * (MOST_BYTES + 1), "larger than"),
    ):
        with pytest.raises(SettingsError, match=complaint):
            texts((wrong,))
    with pytest.raises(SettingsError, match="64 are the most"):
        texts(("x",) * (MOST + 1))


def test_it_ends_where_questions_begin_to_differ() -> None:
    model = ByteModel()
    ids = beginning(model, "Be brief.")
    assert bytes(ids[1:]) == b"system: Be brief.\nuser: "
    said = model.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    assert said[: len(ids)] == ids


def test_a_model_that_cannot_chat_begins_with_the_text_and_no_context_is_filled() -> None:
    plain = ByteModel(replace(INFO, can_chat=False))
    assert beginning(plain, "Hi") == [BEGIN, *b"Hi"]
    assert len(beginning(plain, "x" * 9000)) == INFO.context - 1


def test_a_template_that_knows_no_system_prompt_is_told() -> None:
    class Strict(ByteModel):
        def chat(self, messages: object, tools: object = ()) -> list[int]:
            raise InvalidRequest("No system role.")

    with pytest.raises(SettingsError, match="cannot be a system prompt here: No system role"):
        beginning(Strict(), "Be brief.")
