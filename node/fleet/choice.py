"""What an operator means who names a profile or a model to be served from now on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from node.errors import Conflict, InvalidRequest, ModelFileError, ModelNotFound, NotFound, SettingsError
from node.fleet import profiles
from node.fleet.apply import Terms
from node.fleet.profile import Profile, parse
from node.models import catalog, weights

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def choose(model: str, profile: str, serving: Profile | None, terms: Terms) -> Profile:
    """The profile by its name, or the one that serves with another model in it; names only, never paths.

    Raises InvalidRequest, NotFound, and Conflict where this node's own settings stand above the choice.
    """
    if bool(model) == bool(profile):
        raise InvalidRequest("Name either a `model` or a `profile`.", param="model")
    param = "model" if model else "profile"
    if not _NAME.fullmatch(model or profile):
        raise InvalidRequest(f"`{param}` must be a name.", param=param)
    chosen = _with_model(serving, model) if model else _by_name(profile)
    try:
        settings = terms.hot(chosen)
    except SettingsError as error:
        raise Conflict(
            f"It does not go together with this node's own settings: {error.message}", param=param
        ) from error
    if settings.engine.kind != "echo" and settings.model.name != chosen.settings.model.name:
        raise Conflict(
            f"This node's own settings say model.name = {settings.model.name}, and they stand above every profile.",
            param=param,
            hint="Start it without --model, and without model.name in node.toml and the environment.",
        )
    return chosen


def _by_name(name: str) -> Profile:
    try:
        return profiles.find(name)
    except SettingsError as error:
        raise NotFound(error.message, param="profile") from error


def _with_model(serving: Profile | None, model: str) -> Profile:
    entries = {entry.id: entry for entry in catalog.load().entries}
    if model not in entries:
        raise ModelNotFound(f"There is no model {model} here; there are: {', '.join(sorted(entries))}.", param="model")
    try:
        weights.locate(model)
    except ModelFileError as error:
        raise ModelNotFound(error.message, param="model", hint=f"outpost models pull {model}") from error
    layer = dict(serving.layer) if serving else {}
    layer["model"] = {**layer.get("model", {}), "name": model}
    name = f"local-{re.sub('[^a-z0-9-]', '-', model.lower())}"[:64]
    return parse(_as_toml(name, f"{model}, as an operator chose it", entries[model].sha256, layer), name)


def _as_toml(name: str, description: str, sha256: str, layer: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML's basic strings, lists and numbers are written as JSON's."""
    lines = [f"name = {_dumps(name)}", f"description = {_dumps(description)}", f"model_sha256 = {_dumps(sha256)}"]
    for section, values in layer.items():
        lines += ["", f"[settings.{section}]", *(f"{key} = {_dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
