"""Is the model's file the one that the profile names?"""

from __future__ import annotations

from node.errors import ModelFileError, SettingsError
from node.fleet.profile import Profile
from node.models import catalog, weights
from node.models.download import Report
from node.settings import Settings


def refuse_other_model(profile: Profile, settings: Settings, progress: Report, *, thorough: bool = False) -> bool:
    """Compare the SHA-256 where the profile names one; True if there was something to compare.

    What was fetched by name was hashed then, and counts by the catalogue's word unless `thorough`. A model that this
    node's own settings put in the place of the profile's is not the profile's business. Raises SettingsError, or
    ModelFileError where the file is missing or another one.
    """
    name, promised = settings.model.name, profile.model_sha256
    if not promised or name != profile.settings.model.name or settings.engine.kind == "echo":
        return False
    known = next((entry for entry in catalog.load().entries if entry.id == name), None)
    if known is not None and known.sha256 != promised:
        raise SettingsError(
            f"The profile {profile.name} wants another file than the catalogue has for {name}.\n"
            f"  profile    {promised}\n  catalogue  {known.sha256}",
            hint="They are of different ages; update the one that is older.",
        )
    path = weights.locate(name)
    if known is not None and not thorough:
        return True
    try:
        found = weights.digest(path, path.stat().st_size, progress, name)
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}.") from error
    if found != promised:
        raise ModelFileError(
            f"{path} is not the file that the profile {profile.name} wants: its SHA-256 differs.\n"
            f"  promised {promised}\n  found    {found}",
            hint=f"outpost models verify {name}" if known else "Copy the right file there.",
        )
    return True
