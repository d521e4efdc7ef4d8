"""The paper: plan, draws, learn, forget. Pure: no disk, clock, network, torch or global random state."""
