"""Search images by text and texts by image when the two were never paired."""
