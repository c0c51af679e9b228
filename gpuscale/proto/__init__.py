"""Wire formats: KEDA's external scaler and the kubelet's PodResources v1, generated from the .proto files here.

`make proto` regenerates; a test regenerates too and fails on any difference.
"""
