"""Simulation: the production `decide` in closed loop with a model of replicas, queue and cluster."""
