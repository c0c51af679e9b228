"""Checks on gpuscale itself: this installation, its exporters, its controller, and the Prometheus between them."""

from collections.abc import Iterator

from gpuscale.doctor.facts import (
    Cluster,
    Exporter,
    Facts,
    Here,
    Pod,
    Prometheus,
    Result,
    Status,
    Unreachable,
    Unread,
    number,
    some,
)

COUNTERS_FROM = 520
"""Driver branch from which Hopper's counters are read without DCGM."""


def here(facts: Here) -> Iterator[Result]:
    """This machine."""
    yield Result(
        check="installation",
        status="ok",
        sentence=f"gpuscale {facts.version} on Python {facts.python}",
    )
    if isinstance(facts.driver, Unread):
        yield Result(
            check="driver-here",
            status="info",
            sentence=f"no NVIDIA driver on this machine: {facts.driver.reason}",
        )
    else:
        yield Result(
            check="driver-here",
            status="ok",
            sentence=f"NVIDIA driver {facts.driver} on this machine, {number(facts.gpus, 'GPU')}",
        )


def exporters(cluster: Cluster) -> Iterator[Result]:
    """An exporter on every GPU node, and what each says."""
    if isinstance(cluster.pods, Unread):
        return  # told by the checks on pods
    pods = [p for p in cluster.pods if p.labels.get("app.kubernetes.io/component") == "exporter"]
    if not pods:
        yield Result(
            check="exporters",
            status="warning",
            sentence="no pod of gpuscale's exporter is seen",
            cure="Install the chart: helm install gpuscale deploy/helm/gpuscale.",
        )
        return
    yield from _not_ready("exporters", "exporter", pods)
    if not isinstance(cluster.nodes, Unread):
        covered = {p.node for p in pods}
        bare = [
            n.name for n in cluster.nodes if (n.has_gpu or n.says_gpu) and n.name not in covered
        ]
        if bare:
            yield Result(
                check="exporters",
                status="warning",
                sentence=f"no exporter runs on {some(bare)}",
                cure="Give the DaemonSet the nodes' tolerations and labels (exporter.tolerations, exporter.affinity).",
            )
    yield from _said(cluster)
    yield from _drivers(cluster)


def _drivers(cluster: Cluster) -> Iterator[Result]:
    """Which drivers the nodes run: different ones run images differently, old ones tell less."""
    nodes: dict[str, list[str]] = {}
    for node, said in sorted(cluster.exporters.items()):
        if isinstance(said, Exporter) and said.driver:
            nodes.setdefault(said.driver, []).append(node)
    if not nodes:
        return
    listed = "; ".join(f"{version} on {some(names)}" for version, names in sorted(nodes.items()))
    majors = {version.partition(".")[0] for version in nodes}
    if len(majors) > 1:
        yield Result(
            check="drivers",
            status="info",
            sentence=f"nodes run NVIDIA drivers of different branches: {listed}",
            cure="Bring them to one branch, or keep images that need the newer one off the others.",
        )
    else:
        yield Result(check="drivers", status="ok", sentence=f"NVIDIA driver {listed}")
    old = sorted(m for m in majors if m.isdecimal() and int(m) < COUNTERS_FROM)
    if old:
        yield Result(
            check="drivers",
            status="info",
            sentence=f"drivers before {COUNTERS_FROM} tell nothing of the hardware counters (SM, tensor, memory bandwidth)",
            cure=f"Upgrade to {COUNTERS_FROM} or later on nodes with Hopper or newer GPUs.",
        )


def _said(cluster: Cluster) -> Iterator[Result]:
    good = 0
    for node, said in sorted(cluster.exporters.items()):
        if isinstance(said, Unread):
            yield Result(
                check="exporters",
                status="unknown",
                sentence=f"the exporter on {node} could not be asked: {said.reason}",
                cure="Let this account use pods/proxy, or look at its page: kubectl port-forward.",
            )
        else:
            faults = list(_faults(node, said))
            good += not faults
            yield from faults
    if good:
        yield Result(
            check="exporters",
            status="ok",
            sentence=f"{number(good, 'exporter')} see their GPUs and their holders",
        )


def _faults(node: str, said: Exporter) -> Iterator[Result]:
    if not said.driver_up:
        yield Result(
            check="exporters",
            status="error",
            sentence=f"the exporter on {node} has no driver: {said.reason}",
            cure="Choose the way to the driver that the node has (exporter.gpuAccess.mode).",
        )
    if said.lost:
        yield Result(
            check="exporters",
            status="error",
            sentence=f"on {node} {number(said.lost, 'GPU')} of {said.gpus} do not answer",
            cure="Look for XID errors there; a lost GPU comes back after a reset or a reboot.",
        )
    if said.attribution:
        yield Result(
            check="exporters",
            status="warning",
            sentence=f"the exporter on {node} does not know who holds the GPUs: {said.attribution}",
            cure="Mount the kubelet's pod-resources directory; docs/allocation.md says what each reason means.",
        )


def controller(cluster: Cluster) -> Iterator[Result]:
    """The controller's pods."""
    if isinstance(cluster.pods, Unread):
        return
    pods = [p for p in cluster.pods if p.labels.get("app.kubernetes.io/component") == "controller"]
    if not pods:
        yield Result(
            check="controller",
            status="warning",
            sentence="no pod of gpuscale's controller is seen",
            cure="Install the chart with controller.enabled.",
        )
        return
    late = list(_not_ready("controller", "controller", pods))
    yield from late
    if not late:
        yield Result(
            check="controller", status="ok", sentence=f"{number(len(pods), 'controller')} ready"
        )


def _not_ready(check: str, word: str, pods: list[Pod]) -> Iterator[Result]:
    late = [f"{p.key} on {p.node or 'no node'}" for p in pods if not p.ready]
    if late:
        yield Result(
            check=check,
            status="error",
            sentence=f"{number(len(late), word)} of {len(pods)} not ready: {some(late)}",
            cure="Ask it why: kubectl get --raw /api/v1/namespaces/NAMESPACE/pods/POD:PORT/proxy/readyz.",
        )


def prometheus(found: Prometheus | Unread, cluster: Cluster | Unread) -> Iterator[Result]:
    """What reaches Prometheus."""
    if isinstance(found, Unread):
        status: Status = "error" if isinstance(found, Unreachable) else "unknown"
        yield Result(check="prometheus", status=status, sentence=found.reason)
        return
    if found.gpus is None:
        yield Result(
            check="prometheus",
            status="error",
            sentence=f"the Prometheus at {found.address} has no series of gpuscale's exporters",
            cure="Switch on a monitor in the chart (exporter.serviceMonitor), with the labels that this Prometheus selects.",
        )
    else:
        yield Result(
            check="prometheus",
            status="ok",
            sentence=f"the Prometheus at {found.address} knows {found.gpus:.0f} GPUs on {found.nodes or 0:.0f} nodes",
        )
        yield from _unscraped(found, cluster)
    if found.renamed:
        yield Result(
            check="honor-labels",
            status="error",
            sentence="the exporters are scraped without honorLabels: pod and namespace name the exporter itself",
            cure="Set honorLabels: true on the monitor (the chart's does), or honor_labels in the scrape job.",
        )
    if found.controllers is None:
        yield Result(
            check="prometheus",
            status="warning",
            sentence="it has no series of gpuscale's controller, so its alerts and dashboards are empty",
            cure="Switch on controller.serviceMonitor in the chart.",
        )
    if found.kube_state is None:
        yield Result(
            check="kube-state-metrics",
            status="warning",
            sentence="it has no series of kube-state-metrics, which some alerts and dashboards need",
            cure="Install kube-state-metrics, and let this Prometheus scrape it.",
        )
    if found.dcgm:
        yield Result(
            check="dcgm",
            status="info",
            sentence="it also has series under dcgm-exporter's names",
            cure="Where both exporters run, sums over DCGM_FI_* count twice: docs/moving-from-dcgm-exporter.md.",
        )


def _unscraped(found: Prometheus, cluster: Cluster | Unread) -> Iterator[Result]:
    if isinstance(cluster, Unread) or isinstance(cluster.nodes, Unread):
        return
    having = sum(1 for n in cluster.nodes if n.has_gpu)
    if having and found.nodes is not None and found.nodes < having:
        yield Result(
            check="prometheus",
            status="warning",
            sentence=f"it knows {found.nodes:.0f} of {number(having, 'node')} with GPUs",
            cure="Look at the targets that are down: up{job=~'.*gpuscale.*'} == 0.",
        )


def cluster_facts(facts: Facts) -> Iterator[Result]:
    """Whether there is a cluster to look at."""
    if isinstance(facts.cluster, Unreachable):
        yield Result(check="cluster", status="error", sentence=facts.cluster.reason)
    elif isinstance(facts.cluster, Unread):
        yield Result(
            check="cluster",
            status="unknown",
            sentence=f"no cluster was looked at: {facts.cluster.reason}",
            cure="Name one with --kubeconfig FILE, or set KUBECONFIG.",
        )
    else:
        yield Result(
            check="cluster",
            status="ok",
            sentence=f"Kubernetes {facts.cluster.version} at {facts.cluster.server}",
        )
