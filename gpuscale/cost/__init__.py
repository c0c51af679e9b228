"""What GPUs cost, and whom: hours, energy and money from the exporters' accounts in a Prometheus.

prices  what a GPU-hour of each product costs
bill    from accounts to rows, pure
read    asks the Prometheus
"""
