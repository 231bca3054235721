"""7 Two grids side by side: what changed in absolute figures, not only in ratios (docs/compare.md)."""
