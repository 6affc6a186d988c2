"""Run `python -m transhash`, as torchrun does."""

from transhash.cli import main

main()
