"""Colours and words that all drawings share, static and interactive."""

from __future__ import annotations

# Okabe and Ito's palette: told apart with every common kind of colour blindness, and in grey by marker and line style.
DEFAULT, BEST, TRIAL, LIMIT, INK, GRID, MEMORY = (
    "#D55E00",
    "#0072B2",
    "#8A8F98",
    "#7A3E8E",
    "#2B2F36",
    "#E3E6EA",
    "#009E73",
)
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A8F98")
SCALE = "viridis"
"""From low to high; known to matplotlib and plotly."""
STATE_NAMES = {"INFEASIBLE": "infeasible", "FAILED": "failed", "PRUNED": "pruned"}
"""States without an objective, in words."""
