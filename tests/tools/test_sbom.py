"""The bill of materials: complete for what is installed, the same twice, and in CycloneDX's own form."""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest

from tools import sbom

CATALOG = sbom.ROOT / "models" / "catalog.toml"


def test_everything_that_is_declared_and_installed_is_in_it() -> None:
    made = sbom.document("outpost", catalog=CATALOG)
    names = {component["name"] for component in made["components"]}
    declared = {sbom.canonical(name) for name in sbom.requirements(metadata.distribution("outpost"))}
    assert declared <= names
    assert {"aiohttp", "yarl", "cryptography", "cffi"} <= names, "what it requires requires, too"
    assert "pytest" not in names, "an extra is not part of it"
    assert made["metadata"]["component"]["name"] == "outpost"


def test_an_extra_is_part_of_it_when_asked_for() -> None:
    made = sbom.document("outpost", ["test"])
    assert "pytest" in {component["name"] for component in made["components"]}
    (root,) = [one for one in made["dependencies"] if one["ref"] == made["metadata"]["component"]["bom-ref"]]
    assert any(ref.startswith("pkg:pypi/pytest@") for ref in root["dependsOn"])


def test_it_has_the_form_and_every_reference_leads_somewhere() -> None:
    made = sbom.document("outpost", catalog=CATALOG)
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    refs = [component["bom-ref"] for component in made["components"]]
    assert len(refs) == len(set(refs))
    known = {*refs, made["metadata"]["component"]["bom-ref"]}
    for dependency in made["dependencies"]:
        assert dependency["ref"] in known
        assert set(dependency["dependsOn"]) <= known
    for component in made["components"]:
        if component["type"] == "library":
            assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@.+", component["purl"])
        (licence,) = component.get("licenses", [{"expression": "none told"}])
        assert licence.keys() in ({"expression"}, {"license"})


def test_models_are_promised_by_their_hash() -> None:
    models = sbom.models(CATALOG)
    assert {"smollm2-135m-instruct"} <= {model["name"] for model in models}
    assert all(len(model["hashes"][0]["content"]) == 64 for model in models)


def test_the_same_environment_gives_the_same_document(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sbom.document("outpost") == sbom.document("outpost")
    assert "timestamp" not in sbom.document("outpost")["metadata"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert sbom.document("outpost")["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert sbom.main([]) == 0
    assert json.loads(capsys.readouterr().out)["bomFormat"] == "CycloneDX"


def test_what_is_not_installed_cannot_be_described() -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        sbom.document("no-such-distribution")
