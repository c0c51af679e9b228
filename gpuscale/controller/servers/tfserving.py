"""TensorFlow Serving: the names of its metrics, from its monitoring configuration.

Served by the REST port. Names begin with a colon, which some collectors turn into an underscore.
`request_count` is missing in some images; the latency histogram counts the same requests.
Times are microseconds.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

MICROSECOND_S = 1e-6


def _names(*suffixes: str) -> tuple[str, ...]:
    return tuple(
        prefix + suffix.replace(":", joint)
        for suffix in suffixes
        for prefix, joint in ((":tensorflow:serving:", ":"), ("_tensorflow_serving_", "_"))
    )


TABLE = ServerTable(
    server="tf-serving",
    title="TensorFlow Serving",
    since="2.8; needs a `monitoring_config` with `prometheus_config`",
    port=8501,
    path="/monitoring/prometheus/metrics",
    completed=ServerMetric(names=_names("request_count", "request_latency_count"), kind="counter"),
    sojourn_s=ServerMetric(
        names=_names("request_latency_sum"), kind="counter", factor=MICROSECOND_S
    ),
    queue_s=ServerMetric(
        names=_names("batching_session:queuing_latency_sum"), kind="counter", factor=MICROSECOND_S
    ),
)
