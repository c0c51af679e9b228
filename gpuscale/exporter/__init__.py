"""The exporter: one per node; reads the driver, attributes GPUs to pods, publishes."""
