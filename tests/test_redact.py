"""What is taken out of a text, and which patterns are refused because they could take for ever."""

from __future__ import annotations

import time

import pytest

from node.redact import KNOWN, MOST_TEXT, Redactor, checked

PRIVATE = [
    ("email", "write to ann.b+c@example.co.uk, please", "write to [email], please"),
    ("email", "@nobody and a@b", "@nobody and a@b"),
    ("phone", "call +49 (30) 123456-78 now", "call [phone] now"),
    ("phone", "in 2026 there were 12 of 345", "in 2026 there were 12 of 345"),
    ("card", "4111 1111 1111 1111.", "[card]."),
    ("card", "411111111111", "411111111111"),
    ("iban", "to DE89 3704 0044 0532 0130 00 today", "to [iban] today"),
    ("ip", "from 192.168.0.17 on", "from [ip] on"),
    ("ip", "version 1.2.3.4.5", "version 1.2.3.4.5"),
    (r"\bBlue (?:Fox|Bear)\b", "operation Blue Fox begins", "operation [redacted] begins"),
    (r"EMP-\d{4,8}", "EMP-12345!", "[redacted]!"),
]


# What people write around it must not save it.
AROUND = [
    ("iban", "IBAN DE89370400440532013000 Please pay", "IBAN [iban] Please pay"),
    ("iban", "DE89 3704 0044 0532 0130 00 Ist meins", "[iban] Ist meins"),
    ("iban", "de89 3704 0044 0532 0130 00 ist meins", "[iban] ist meins"),
    ("iban", "gb29 nwbk 6016 1331 9268 19, thanks", "[iban], thanks"),
    ("iban", "GB29 NWBK 6016 1331 9268 19.", "[iban]."),
    ("iban", "at 12 o'clock on route AB12", "at 12 o'clock on route AB12"),
    ("card", "card 4111 1111 1111 1111 2nd", "card [card] 2nd"),
    ("card", "4111 1111 1111 1111 0825 123", "[card] 0825 123"),
    ("phone", "call 030 1234567 24h", "call [phone] 24h"),
    ("phone", "030 1234567 12345678", "[phone] [phone]"),
    ("ip", "The host is 192.168.0.1.", "The host is [ip]."),
    ("ip", "10.0.0.1...", "[ip]..."),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), [*PRIVATE, *AROUND])
def test_what_a_pattern_names_is_taken_out(pattern: str, text: str, expected: str) -> None:
    assert Redactor([pattern]).text(text) == expected


@pytest.mark.parametrize("patterns", [tuple(KNOWN), tuple(reversed(KNOWN)), ("email", "phone", "card", "iban", "ip")])
def test_one_is_not_taken_for_a_part_of_another_in_whatever_order_they_are_named(patterns: tuple[str, ...]) -> None:
    redactor = Redactor(patterns)
    assert redactor.text("4111 1111 1111 1111") == "[card]"
    assert redactor.text("DE89 3704 0044 0532 0130 00") == "[iban]"
    assert redactor.text("+49 (0)30 1234567, a@b.example") == "[phone], [email]"


def test_every_string_of_a_body_is_redacted_and_nothing_else() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "I am a@example.com", "n": 3},
            {"tool_calls": [{"x": "b@example.com"}]},
        ],
        "temperature": 0.5,
        "stop": None,
    }
    assert Redactor(["email"]).value(body) == {
        "messages": [{"role": "user", "content": "I am [email]", "n": 3}, {"tool_calls": [{"x": "[email]"}]}],
        "temperature": 0.5,
        "stop": None,
    }


REFUSED = [
    ("(a+)+b", "without a bound"),
    ("a*b", "without a bound"),
    (".{1,9999}", "without a bound"),
    ("(?:a|a){1,30}b", "ways"),
    ("(?:a{1,8}){1,8}b", "ways"),
    (r"\w{0,64}\w{0,64}x", "ways"),
    (r"(?:\w{1,64}+){1,64}+x", "pieces"),
    (r"(\w)\1", "refers back"),
    ("a(?=b)", "looks ahead"),
    ("(?<=b)a", "looks ahead"),
    ("a{0,5}", "empty"),
    ("a|", "empty"),
    (r"\b", "empty"),
    ("(", "no regular expression"),
    ("", "1 to 200"),
    ("a" * 201, "1 to 200"),
    ("(" * 150, "no regular expression"),
]


@pytest.mark.parametrize(("pattern", "word"), REFUSED)
def test_what_could_take_long_or_match_nothing_is_refused(pattern: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        checked(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"[\w.]{1,64}+@x", r"\d[\d -]{6,20}\d", "colou?r", "(?i:secret)", "(?:Mr|Mrs|Dr) [A-Z][a-z]{1,20}", "(?>ab|a)c"],
)
def test_what_is_bounded_is_accepted(pattern: str) -> None:
    assert checked(pattern) == pattern


@pytest.mark.parametrize(
    "text", ["a" * MOST_TEXT, "1 " * (MOST_TEXT // 2), "a@" * (MOST_TEXT // 2), "A1" * (MOST_TEXT // 2)]
)
def test_the_longest_text_takes_seconds_at_most(text: str) -> None:
    redactor = Redactor([*KNOWN, r"\w{1,64}x", r"\d[\d -]{6,20}x"])
    began = time.process_time()
    redactor.text(text)
    assert time.process_time() - began < 20
