"""`python -m oracle`: the command line without the gate."""

from __future__ import annotations

from oracle.cli import main

main()
