"""Quantiles of the highest demand over the lead time."""
