"""The controller: observes workloads, forecasts, decides, answers KEDA or scales by itself."""
