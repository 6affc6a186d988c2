"""Images and texts as rows of numbers."""

BACKBONE_FILE = "backbone.safetensors"  # of a run whose backbone was fine-tuned
TUNED = "+tuned"  # ends the name of features whose backbone was
