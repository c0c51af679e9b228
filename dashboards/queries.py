"""Expressions that several dashboards are made of: GPUs of the chosen nodes, workloads of the chosen namespaces.

All of them select by the variables `cluster`, `node`, `namespace` and `workload`, whose value for
"all" also matches series without the label.
"""

CLUSTER = 'cluster=~"$cluster"'
FLEET = f'{CLUSTER},namespace=~"$namespace"'
CHOSEN = f'{FLEET},workload=~"$workload"'
KEYS = "namespace, workload"
SETTINGS = "mode, server, policy, actuator"

IDENTITY = f'max by (cluster, uuid, node, product) (gpuscale_gpu_info{{{CLUSTER},node=~"$node"}})'
"""One series per GPU of the chosen nodes, value 1: multiplying by it adds node and product."""
HOLDERS = f'gpuscale_gpu_allocation_info{{{CLUSTER},namespace=~"$namespace"}}'
BUSY = f"rate(gpuscale_gpu_busy_seconds_total{{{CLUSTER}}}[$__rate_interval])"


def of_nodes(expression: str) -> str:
    """A device series of the chosen nodes, with the labels node and product."""
    return f"{expression} * on (cluster, uuid) group_left (node, product) {IDENTITY}"


def by_gpu(metric: str, labels: str = "") -> str:
    """A gauge of each GPU of the chosen nodes."""
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    return f"max by (node, gpu, product, uuid) ({of_nodes(f'{metric}{{{matchers}}}')})"


def some(condition: str, all_of_it: str) -> str:
    """How many meet the condition; 0 only where there is something that could: never for no data."""
    return f"count({condition}) or 0 * count({all_of_it})"


def rate_of(metric: str, matchers: str = CLUSTER) -> str:
    """A counter per second."""
    return f"rate({metric}{{{matchers}}}[$__rate_interval])"


def largest(metric: str, *, by: str = KEYS, labels: str = "", of: str = CHOSEN) -> str:
    """A gauge of the chosen workload; the maximum, since an old and a new controller may both be scraped."""
    matchers = f"{of},{labels}" if labels else of
    return f"max by ({by}) ({metric}{{{matchers}}})"


def rates(metric: str, by: str, matchers: str = CLUSTER) -> str:
    """Per second, summed."""
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def of_fleet(metric: str, *, by: str = KEYS, labels: str = "") -> str:
    """A gauge of every workload of the chosen namespaces."""
    return largest(metric, by=by, labels=labels, of=FLEET)
