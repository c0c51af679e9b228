"""Ray Serve: the names of its metrics, from https://docs.ray.io/en/latest/serve/monitoring.html.

Ray Serve scales its replicas itself, so gpuscale only shows what it would ask for. Routers and
replicas write on whatever node they run, and a series may be collected from several: its own labels
(`deployment`, `replica`, `handle`, `actor_id`) tell it apart, the node's do not. Narrow the selector
to one `deployment`; requests of an application pass through several.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

MILLISECOND_S = 1e-3

TABLE = ServerTable(
    server="ray-serve",
    title="Ray Serve",
    since="2.10; on by default",
    port=8080,
    recommend_only=True,
    completed=ServerMetric(
        names=(
            "ray_serve_deployment_request_counter_total",
            "ray_serve_deployment_request_counter",
        ),
        kind="counter",
        plus=("ray_serve_deployment_error_counter_total",),
    ),
    waiting=ServerMetric(names=("ray_serve_deployment_queued_queries",), kind="gauge"),
    running=ServerMetric(
        names=(
            "ray_serve_replica_processing_queries",
            "ray_serve_num_ongoing_requests_at_replicas",
        ),
        kind="gauge",
    ),
    sojourn_s=ServerMetric(
        names=("ray_serve_deployment_processing_latency_ms_sum",),
        kind="counter",
        factor=MILLISECOND_S,
    ),
    models=("deployment",),
    copies=("instance", "pod", "node", "NodeAddress", "SessionName", "Version", "ray_io_cluster"),
    identity=("replica",),
)
