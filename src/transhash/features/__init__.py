"""Image and text features: files and texts to arrays."""

BACKBONE_FILE = "backbone.safetensors"  # in a run folder, if the backbone was fine-tuned
FINE_TUNED_SUFFIX = "+tuned"  # ends the feature name of a fine-tuned backbone
LIBRARIES = ("open_clip", "timm", "transformers")  # their models are named LIBRARY:NAME


def named_library(name: str | None) -> str | None:
    """Return the library of a feature name LIBRARY:NAME, or None for other names."""
    library, colon, _ = (name or "").partition(":")
    return library if colon and library in LIBRARIES else None
