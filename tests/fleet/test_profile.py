"""What a profile may say, and that every mistake is told with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import SettingsError
from node.fleet.profile import MAX_BYTES, OWN, Minimum, find_problems, parse
from node.settings import SECTIONS, Settings
from tests.fleet.support import TEXT

HEAD = 'name = "a"\ndescription = "b"\n'


def test_a_profile() -> None:
    profile = parse(TEXT, "kiosk.toml")
    assert (profile.name, profile.description, profile.source, profile.text) == ("kiosk", "A kiosk", "kiosk.toml", TEXT)
    assert profile.minimum == Minimum(
        architectures=("x86_64", "aarch64"), features=("avx2", "fma"), cores=2, memory_mib=1000
    )
    assert profile.layer == {"engine": {"kind": "echo", "slots": 3}, "queue": {"max_waiting": 5}}
    assert (profile.settings.engine.slots, profile.settings.server) == (3, Settings().server)


def test_a_head_alone_asks_for_nothing() -> None:
    profile = parse(HEAD, "x")
    assert (profile.minimum, profile.layer, profile.settings) == (Minimum(), {}, Settings())


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ('name = "a"\n', 1, "", "`description` is missing"),
        ('name = "A b"\ndescription = "c"', 1, "name", "lower-case letters, digits and dashes"),
        (f'name = "{"a" * 65}"\ndescription = "c"', 1, "name", "at most 64"),
        ('name = "../a"\ndescription = "c"', 1, "name", "lower-case"),
        ('name = "a"\ndescription = "c\\nd"', 2, "description", "one line"),
        ('name = 1\ndescription = "c"', 1, "name", "Expected `str`, got `int`"),
        (HEAD + 'model_sha256 = "abc"', 3, "model_sha256", "64 hexadecimal digits"),
        (HEAD + "nmae = 1", 3, "nmae", "did you mean name?"),
        (HEAD + "zzz = 1", 3, "zzz", "there is no such key"),
        (HEAD + "minimum = 3", 3, "minimum", "must be a table"),
        (HEAD + "[minimum]\ncores = 0", 4, "minimum.cores", ">= 1"),
        (HEAD + "[minimum]\n\n# x\ncores = 1.5", 6, "minimum.cores", "int"),
        (HEAD + "[minimum]\nmemory_mib = -1", 4, "minimum.memory_mib", ">= 0"),
        (HEAD + '[minimum]\nfeatures = ["avx3"]', 4, "minimum.features", "`avx3` is not known; there are avx, avx2"),
        (HEAD + '[minimum]\nfeatures = ["avx2", 3]', 4, "minimum.features", "str"),
        (HEAD + '[minimum]\nnpus = ["Rockchip"]', 4, "minimum.npus", "Rockchip NPU"),
        (HEAD + '[minimum]\narchitectures = ["X86"]', 4, "minimum.architectures", "str"),
        (HEAD + "settings = []", 3, "settings", "must be a table"),
        (HEAD + "[settings]\nengine = 1", 4, "settings.engine", "must be a table"),
        (HEAD + "[settings.engin]", 3, "settings.engin", "did you mean engine?"),
        (HEAD + "[settings.engine]\nthreds = 1", 4, "settings.engine.threds", "did you mean threads?"),
        (HEAD + "[settings.engine]\nslots = 0", 4, "settings.engine.slots", "between 1 and"),
        (HEAD + "[settings.engine]\nslots = true", 4, "settings.engine.slots", "int"),
        (HEAD + "[settings.queue]\nmax_waiting = '3'", 4, "settings.queue.max_waiting", "int"),
        (HEAD + "[settings.engine]\nstep_ms = nan", 4, "settings.engine.step_ms", "between"),
        (HEAD + '[settings.engine]\nkind = "gpt"', 4, "settings.engine.kind", "one of llama, onnx, echo"),
        (HEAD + '[settings.server]\nhost = "::"', 4, "settings.server.host", "one node alone"),
        (HEAD + 'settings.server.api_keys = ["x"]', 3, "settings.server.api_keys", "one node alone"),
        (HEAD + "a = [", 3, "", "not valid TOML"),
        ("name = \x00", 1, "", "not valid TOML"),
        (HEAD + 'name = "b"', 3, "", "not valid TOML: Cannot overwrite"),
        (HEAD + "x = " + "[" * 5000 + "]" * 5000, 1, "", "nested too deeply"),
        (HEAD + "x = " + "1" * 5000, 1, "", "a value that cannot be"),
        ("#" * (MAX_BYTES + 1), 1, "", "larger than a profile can be"),
    ],
)
def test_a_mistake_has_its_line(text: str, line: int, key: str, words: str) -> None:
    (problem, *_) = [problem for problem in find_problems(text) if problem.key == key]
    assert (problem.line, words in problem.message) == (line, True), problem
    with pytest.raises(SettingsError, match=f"x.toml, line {line}: ") as error:
        parse(text, "x.toml")
    assert error.value.exit_code == 2


def test_all_mistakes_are_told_in_the_order_of_their_lines() -> None:
    text = '[settings.engine]\nslots = 0\nkind = 3\n[settings.queue]\nx = 1\n[minimum]\ncores = "a"\n'
    problems = find_problems(text)
    assert [problem.line for problem in problems] == [1, 1, 2, 3, 5, 7]
    with pytest.raises(SettingsError) as error:
        parse(text, "x.toml")
    assert error.value.message.count("x.toml, line") == len(problems)


def test_very_many_mistakes_are_counted() -> None:
    text = HEAD + "[settings.engine]\n" + "\n".join(f"k{number} = 1" for number in range(50))
    with pytest.raises(SettingsError, match="and 42 more"):
        parse(text, "x.toml")


def test_settings_that_do_not_go_together_have_the_line_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(settings: Settings) -> None:
        raise SettingsError("queue.max_waiting is odd, but engine.slots is 3.")

    monkeypatch.setattr("node.layers.check", refuse)
    (problem,) = find_problems(TEXT)
    assert (problem.line, problem.key) == (10, "settings.engine.slots")
    assert str(problem) == "line 10: settings.engine.slots: queue.max_waiting is odd, but engine.slots is 3."


def test_secrets_and_addresses_are_a_nodes_own() -> None:
    """A new setting that looks like a secret has to be listed, or this fails."""
    keys = {f"{name}.{key}" for name, section in SECTIONS.items() for key in section.__struct_fields__}
    assert keys >= OWN
    looks = ("key", "secret", "password", "certificate", "credential", "host", "database", "file", "folder", "serial")
    ours = {"link.serial_baud", "link.serial_mode"}  # which only sound like it
    assert {key for key in keys if any(word in key.partition(".")[2] for word in looks)} - ours <= OWN


@given(st.text(alphabet='namedscriptoug_.="[]{}\n 0123', max_size=80))
def test_any_text_is_a_profile_or_has_problems(text: str) -> None:
    problems = find_problems(text)
    assert problems
    assert all(1 <= problem.line <= text.count("\n") + 1 for problem in problems)


def test_a_profiles_redaction_patterns_must_be_quick_and_its_cloud_has_no_key() -> None:
    head = 'name = "x"\ndescription = "x"\n[settings.cloud]\n'
    (slow,) = find_problems(head + 'redact = ["email", "(a+)+b"]\n')
    assert (slow.line, "without a bound" in slow.message) == (4, True)
    (own,) = find_problems(head + 'policy = "redacted"\napi_key_file = "/key"\n')
    assert (own.line, "one node alone" in own.message) == (5, True)
    assert find_problems(head + 'url = "https://x.example/v1"\npolicy = "redacted"\nredact = ["iban"]\n') == []
