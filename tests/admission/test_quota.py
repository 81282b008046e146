"""The quota file: what it says, and that every slip is told with its place."""

from __future__ import annotations

import hashlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission import quota
from node.admission.account import Rates
from node.admission.quota import MOST_BYTES, Quotas, parse
from node.errors import SettingsError

KEY = "a key of alice's, long enough"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def read(text: str) -> Quotas:
    return parse(textwrap.dedent(text), "quota.toml")


def test_the_example_in_the_docstring_is_one() -> None:
    example = "\n".join(line[4:] for line in (quota.__doc__ or "").splitlines() if line.startswith("    "))
    quotas = parse(example.replace("…", DIGEST))
    alice = quotas.holder(DIGEST)
    assert (alice.tenant, alice.name, alice.level, alice.ceiling) == ("acme", "alice", "interactive", "critical")
    allowance = alice.allowance("another")
    assert allowance.tenant == Rates(output=60000)
    assert allowance.user == Rates(prompt=20000, output=6000, burst=0.5)
    assert allowance.session == Rates(output=2000)
    assert allowance.model is None
    assert alice.allowance("smollm2-135m-instruct").model == Rates(requests=60)
    stranger = quotas.holder("0" * 64)
    assert (stranger.tenant, stranger.level, stranger.ceiling) == ("", "standard", "interactive")
    assert stranger.allowance("x").user == Rates(output=6000)


def test_no_file_limits_nobody() -> None:
    anybody = Quotas().holder(DIGEST)
    assert (anybody.level, anybody.ceiling) == ("standard", "critical")
    assert anybody.allowance("m").most_prompt is None


def test_an_empty_file_lets_nobody_be_critical() -> None:
    assert read("").default.ceiling == "interactive"


def test_a_plain_key_and_its_digest_are_the_same_and_no_key_is_kept() -> None:
    plain = read(f'[tenants.acme.keys.alice]\nkey = "{KEY}"\n')
    hashed = read(f'[tenants.acme.keys.alice]\nkey_sha256 = "{DIGEST.upper()}"\n')
    assert plain == hashed
    assert KEY not in repr(plain)


def test_keys_without_limits_have_their_tenants() -> None:
    quotas = read(f"""
        [tenants.acme]
        key_limits = {{ requests_per_minute = 30 }}
        session_limits = {{ requests_per_minute = 3 }}
        [tenants.acme.keys.a]
        key_sha256 = "{DIGEST}"
        [tenants.acme.keys.b]
        key_sha256 = "{"b" * 64}"
        limits = {{ output_tokens_per_minute = 90 }}
        session_limits = {{}}
    """)
    a, b = quotas.holder(DIGEST).allowance("m"), quotas.holder("b" * 64).allowance("m")
    assert (a.user, a.session) == (Rates(requests=30), Rates(requests=3))
    assert (b.user, b.session) == (Rates(output=90), Rates()), "its own, even where they limit nothing"


def test_all_keys_of_a_tenant_share_one_cap() -> None:
    quotas = read(f"""
        [tenants.acme]
        limits = {{ output_tokens_per_minute = 1000 }}
        keys.a.key_sha256 = "{DIGEST}"
        keys.b.key_sha256 = "{"b" * 64}"
    """)
    a, b = quotas.holder(DIGEST), quotas.holder("b" * 64)
    assert a.allowance("m").tenant is b.allowance("m").tenant
    assert {a.name, b.name} == {"a", "b"}


GOOD = f"""\
[default]
level = "standard"

[tenants.acme]
limits = {{ output_tokens_per_minute = 100 }}

[tenants.acme.keys.alice]
key_sha256 = "{DIGEST}"
level = "standard"
ceiling = "critical"

[tenants.acme.keys.alice.limits]
prompt_tokens_per_minute = 10
burst = 0.5
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('ceiling = "critical"', 'cieling = "critical"', "line 10: `tenants.acme.keys.alice.cieling` is not known"),
        ('ceiling = "critical"', 'cieling = "critical"', "did you mean `ceiling`"),
        ("[default]", "[defaults]", "line 1: `defaults` is not known; did you mean `default`"),
        ('level = "standard"', 'level = "urgent"', "line 2: `default.level`"),
        (
            'level = "standard"\nceiling',
            'level = "urgent"\nceiling',
            "line 9: `tenants.acme.keys.alice.level` .*urgent",
        ),
        ("burst = 0.5", "burst = 5", "line 12: `tenants.acme.keys.alice.limits` a burst is a share"),
        ("prompt_tokens_per_minute = 10", "prompt_tokens_per_minute = -1", "line 12.*at least 1, not -1"),
        ("prompt_tokens_per_minute = 10", "prompt_tokens_per_minute = nan", "line 12.*at least 1, not nan"),
        ("prompt_tokens_per_minute", "prompt_token_per_minute", "line 13.*did you mean `prompt_tokens_per_minute`"),
        ("= 10\n", '= "10"\n', "line 13: `tenants.acme.keys.alice.limits.prompt_tokens_per_minute` expected"),
        ("{ output_tokens_per_minute = 100 }", "{ tokens = 100 }", "line 5: `tenants.acme.limits.tokens` is not known"),
        ("{ output_tokens_per_minute = 100 }", "100", "line 5: `tenants.acme.limits` expected `object`"),
        ('ceiling = "critical"', 'ceiling = "background"', "line 9.*standard is above its ceiling, background"),
        (f'key_sha256 = "{DIGEST}"', "", "line 7: `tenants.acme.keys.alice` needs either key or key_sha256"),
        ("key_sha256", f'key = "{KEY}"\nkey_sha256', "line 7.*needs either"),
        (DIGEST, "abc", "line 8: `tenants.acme.keys.alice.key_sha256` must be 64"),
        (f'key_sha256 = "{DIGEST}"', 'key = "short"', "line 8: `tenants.acme.keys.alice.key` must have at least 16"),
        ("[tenants.acme.keys.alice]", '[tenants.acme.keys."al ice"]', "line 7: `tenants.acme.keys.al ice` is no name"),
        ("[tenants.acme]", '[tenants."!"]', "`tenants.!` is no name"),
        ("[default]", "[default", "not valid TOML.*line 1"),
    ],
)
def test_a_slip_is_told_with_its_line_and_key(old: str, new: str, complaint: str) -> None:
    read(GOOD)
    with pytest.raises(SettingsError, match=complaint) as error:
        read(GOOD.replace(old, new, 1))
    assert "quota.toml" in error.value.message
    assert error.value.exit_code == 2
    assert "short" not in error.value.message
    assert KEY not in error.value.message


def test_a_key_belongs_to_one_holder() -> None:
    text = f'[tenants.acme.keys.alice]\nkey = "{KEY}"\n[tenants.other.keys.bob]\nkey_sha256 = "{DIGEST}"\n'
    with pytest.raises(SettingsError, match=r"line 3: `tenants.other.keys.bob` holds the same key as acme's alice"):
        read(text)


def test_the_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="larger than a quota file"):
        parse("#" * (MOST_BYTES + 1))
    monkeypatch.setattr(quota, "MOST_KEYS", 3)
    keys = "\n".join(f'[tenants.acme.keys.k{number}]\nkey = "{KEY}{number}"' for number in range(4))
    with pytest.raises(SettingsError, match="k3` is one more than the 3 keys"):
        read(keys)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 20_000 + "]" * 20_000, "{a = " * 5000 + "1" + "}" * 5000])
def test_what_tomllib_itself_cannot_bear_is_told_too(value: str) -> None:
    with pytest.raises(SettingsError, match="not valid TOML"):
        parse(f"default = {value}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[default]\na" + ".a" * 65 + " = 1\n", "line 2: no key.*64 dots"),
        ("a" + ".a" * 500_000 + " = 1", "line 1: no key.*64 dots"),
        ("".join(f"a{number:x}.b.c.d.e.f.g.h.i.j = 1\n" for number in range(30_000)), "more tables than"),
        ("[[a]]\n" * 130_000, "more tables than"),
        ("a = [" + "{}," * 250_000 + "]", "more tables than"),
    ],
    ids=["deep", "very deep", "dotted", "tables", "inline"],
)
def test_what_would_take_tomllib_gigabytes_is_refused_unread(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        parse(text, "quota.toml")


def test_ten_thousand_keys_are_within_the_bounds() -> None:
    keys = (f'[tenants.t.keys."a.{number}"]\nkey_sha256 = "{number:064x}"\n' for number in range(8000))
    assert len(parse("".join(keys)).holders) == 8000


def test_a_holder_of_the_default_has_no_key() -> None:
    with pytest.raises(SettingsError, match=r"line 2: `default.key` is not known"):
        read(f'[default]\nkey = "{KEY}"\n')


def refusal_of(text: str) -> str:
    """ "" when it is read; anything but a SettingsError fails the test."""
    try:
        parse(text)
    except SettingsError as error:
        return error.message
    return ""


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusal_of(text)


@given(st.integers(0, len(GOOD) - 1), st.characters(codec="utf-8"))
def test_any_slip_of_a_finger_is_read_or_refused(position: int, character: str) -> None:
    refusal = refusal_of(GOOD[:position] + character + GOOD[position + 1 :])
    assert not refusal or "the quota file" in refusal
