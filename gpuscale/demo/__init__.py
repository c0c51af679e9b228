"""The demo: the real daemons, servers and wire formats over a simulated cluster; no GPU, cluster or network."""
