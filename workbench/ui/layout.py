"""The look that all interactive charts share."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


def apply_layout(figure: go.Figure, *, height: int, has_legend: bool = True) -> go.Figure:
    """Sizes, margins and a legend above the axes, where it covers no data. `height` in pixels."""
    legend: dict[str, Any] = {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0}
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 40 if has_legend else 16, "b": 10},
        showlegend=has_legend,
        legend=legend,
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(automargin=True, separatethousands=True)
    figure.update_yaxes(automargin=True, separatethousands=True)
    return figure
