"""The model of a clone's ``models`` folder, where there is one, and adapters for it."""

from __future__ import annotations

