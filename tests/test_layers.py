"""How settings are read: layers, types, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import SettingsError
from node.layers import chosen, load
from node.settings import Settings


def read(tmp_path: Path, text: str, **layers: dict[str, str]) -> object:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load(file, environment=layers.get("environment", {}), flags=layers.get("flags"))


def test_layers_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[server]\nport = 1\nhost = '::1'\n[engine]\nslots = 2\n")
    settings = load(
        file, environment={"OUTPOST_SERVER_PORT": "3", "OUTPOST_ENGINE_SLOTS": "4"}, flags={"server.port": "5"}
    )
    assert (settings.server.port, settings.engine.slots, settings.server.host) == (5, 4, "::1")
    assert settings.engine.threads == 0


def test_a_profile_stands_above_the_defaults_and_below_what_the_node_says(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[engine]\nslots = 2\n")
    profile = {"engine": {"slots": 1, "context": 99}, "queue": {"max_waiting": 3}}
    settings = load(file, environment={"OUTPOST_QUEUE_MAX_WAITING": "4"}, profile=profile)
    assert (settings.engine.slots, settings.engine.context, settings.queue.max_waiting) == (2, 99, 4)
    assert settings.engine.kv_type == "f16"
    assert profile["engine"] == {"slots": 1, "context": 99}  # the caller's own is left alone


def test_only_the_echo_engine_has_so_many_slots() -> None:
    many = {"engine.slots": "1000", "engine.batch": "1000"}
    with pytest.raises(SettingsError, match=r"engine\.slots must be between 1 and 127"):
        load(environment={}, flags=many)
    assert load(environment={}, flags={**many, "engine.kind": "echo"}).engine.slots == 1000


def test_a_profile_must_go_with_the_rest() -> None:
    with pytest.raises(SettingsError, match=r"engine.slots must be between"):
        load(environment={}, profile={"engine": {"slots": 0}})


def test_tuned_values_lie_below_everything_an_operator_says(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[engine]\nslots = 2\n")
    asked: list[Settings] = []

    def tuned(settings: Settings) -> dict[str, dict[str, object]]:
        asked.append(settings)
        return {"engine": {"slots": 9, "threads": 3, "kv_type": "q8_0"}, "model": {"variant": "/v.gguf"}}

    settings = load(file, environment={"OUTPOST_ENGINE_THREADS": "4"}, tuned=tuned)
    assert (settings.engine.slots, settings.engine.threads, settings.engine.kv_type) == (2, 4, "q8_0")
    assert settings.model.variant == "/v.gguf"
    assert asked == [load(file, environment={"OUTPOST_ENGINE_THREADS": "4"})], "it sees what the others say"


@pytest.mark.parametrize("values", [{"kv_type": "q8_0"}, {"batch": 4}, {"threads": "many"}, {"unknown": 1}])
def test_tuned_values_that_do_not_go_with_the_rest_are_left_out_with_a_word(
    values: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    flags = {"engine.flash_attention": "off"}
    settings = load(environment={}, flags=flags, tuned=lambda settings: {"engine": values})
    assert settings == load(environment={}, flags=flags)
    assert caplog.records[-1].getMessage() == "tuned.toml is ignored"


def test_what_an_operator_has_chosen_is_known(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[engine]\nslots = 8\n")  # the default, but said
    found = chosen(file, environment={"OUTPOST_SERVER_PORT": "1"}, flags={"log.level": "info"})
    assert found == {"engine.slots", "server.port", "log.level"}
    assert chosen(environment={}) == set()


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[queue]\nmax_waiting = 3\n")
    assert load(environment={"OUTPOST_CONFIG": str(file)}).queue.max_waiting == 3


def test_lists_come_with_commas(tmp_path: Path) -> None:
    keys = load(environment={"OUTPOST_SERVER_API_KEYS": f"{'a' * 16},{'b' * 16}"}).server.api_keys
    assert keys == ("a" * 16, "b" * 16)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[server]\nprot = 1", "prot"),
        ("[sevrer]\nport = 1", "sevrer"),
        ("port = 1", "port"),
        ("[server]\nport = '1'", "int"),
        ("[server]\nport = 70000", "65535"),
        ("[server]\nport = -1", "between"),
        ("[server]\nkeepalive_s = nan", "between"),
        ("[engine]\nkind = 'gpt'", "enum"),
        ("[server]\ntls_key = 'x'", "together"),
        ("[server]\napi_keys = ['short']", "16 characters"),
        ("[server]\nhost = '0.0.0.0'", "API key"),
        ("[hub]\nurl = 'http://hub.example'", "https://"),
        ("[hub]\nurl = 'https://user@hub.example'", "https://"),
        ("[hub]\nurl = 'hub.example'", "https://"),
        ("[hub]\ntelemetry_s = 60.0", "hub.url"),
        ("[hub]\nurl = 'http://127.0.0.1:1'\ntelemetry_s = 0.5", "at least 1"),
        ("[hub]\nurl = 'https://a.example'\nnode = 'x'", "Only one"),
        ("[hub]\nkey = 'a'\nkey_file = 'b'", "Only one"),
        ("[hub]\nkey = 'ä'", "ASCII"),
        ("[outbox]\ncallbacks = ['ftp://a.example']", "ftp://a.example"),
        ("[outbox]\ncallbacks = ['https://a.example']", "callback_secret_file"),
        ("[engine]\nbatch = 64\nslots = 65", "65 slots"),
        ("[engine]\nubatch = 513", "more than engine.batch"),
        ("[engine]\nflash_attention = 'off'\nkv_type = 'q8_0'", "needs flash attention"),
        ("[server", "TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as error:
        read(tmp_path, text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["OUTPOST_SERVER_PROT", "OUTPOST_X", "OUTPOST_SERVER"])
def test_an_unknown_variable_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError, match=r"no setting"):
        load(environment={name: "1"})


def test_a_wrong_flag_names_its_layer() -> None:
    with pytest.raises(SettingsError, match="command line"):
        load(environment={}, flags={"server.port": "many"})
    with pytest.raises(SettingsError, match="environment"):
        load(environment={"OUTPOST_SERVER_PORT": "many"})


def test_a_missing_or_huge_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Cannot read"):
        load(tmp_path / "none.toml", environment={})
    (tmp_path / "huge.toml").write_text("#" * (1 << 20) + "\n" * 2)
    with pytest.raises(SettingsError, match="larger"):
        load(tmp_path / "huge.toml", environment={})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="TOML"):
        load(tmp_path / "binary.toml", environment={})


def test_a_key_opens_the_door() -> None:
    settings = load(environment={}, flags={"server.host": "0.0.0.0", "server.api_keys": "k" * 16})
    assert settings.server.host == "0.0.0.0"


@pytest.mark.parametrize(
    "url", ["example.com", "ftp://x/v1", "https://", "https://u:p@x/v1", "https://x/v1?a=1", "http://x y"]
)
def test_a_cloud_that_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"cloud\.url"):
        load(environment={}, flags={"cloud.url": url})


@pytest.mark.parametrize("pattern", ["(a+)+b", "x*", "(", "(?=a)b"])
def test_a_pattern_that_could_take_for_ever_is_refused_before_it_is_used(pattern: str) -> None:
    with pytest.raises(SettingsError, match=r"cloud\.redact"):
        load(environment={}, flags={"cloud.redact": f"email,{pattern}"})


def test_names_and_bounded_patterns_are_taken() -> None:
    found = load(environment={}, flags={"cloud.redact": "iban,EMP-[0-9]x"})
    assert found.cloud.redact == ("iban", "EMP-[0-9]x")
    assert load(environment={}, flags={"cloud.url": "https://[::1]:8000/v1"}).cloud.url == "https://[::1]:8000/v1"
