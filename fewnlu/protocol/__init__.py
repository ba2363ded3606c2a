"""The evaluation protocol: grids, trials, records, selection, statistics (FewNLU, Algorithm 1)."""
