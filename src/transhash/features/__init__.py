"""Images and texts as rows of numbers."""

BACKBONE_FILE = "backbone.safetensors"  # of a run whose backbone was fine-tuned
FINE_TUNED_SUFFIX = "+tuned"  # ends the name of features whose backbone was
LIBRARIES = ("open_clip", "timm", "transformers")  # whose models are named LIBRARY:NAME


def named_library(name: str | None) -> str | None:
    """The library of that name's model; None where it names none."""
    library, colon, _ = (name or "").partition(":")
    return library if colon and library in LIBRARIES else None
