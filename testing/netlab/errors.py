"""What can go wrong with the laboratory itself; what goes wrong in a command is an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .linkcheck import Measured


class LabError(Exception):
    """The laboratory could not be made or used; the text names the cause."""


class NotHere(LabError):
    """This machine or user lacks what the laboratory needs; tests skip."""


class LinkRefused(LabError):
    """A link does not have the rate it should have, so nothing measured on it would mean anything."""

    def __init__(self, text: str, measured: list[Measured]) -> None:
        super().__init__(text)
        self.measured = measured
