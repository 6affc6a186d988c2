"""`python -m transhash`, which is also what torchrun starts."""

from transhash.cli import main

main()
