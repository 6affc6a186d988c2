"""From files to run folders and back: fit, encode, index, search, score."""
