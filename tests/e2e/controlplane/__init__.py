"""A real Kubernetes control plane with KEDA and simulated GPU nodes, as processes on loopback.

`go.mod` here and in `kwok/` pin the programs (the simulated kubelet wants another Kubernetes than
KEDA); `python -m tests.e2e.controlplane.build` builds them once, outside the repository.
"""
