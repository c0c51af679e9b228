"""gpuscale: a truthful GPU exporter and a forecasting autoscaler for GPU inference on Kubernetes."""

__version__ = "0.1.0"
