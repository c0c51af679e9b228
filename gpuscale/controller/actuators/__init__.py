"""What a decision moves: KEDA's external scaler (asked by KEDA) and the scale subresource (written by us)."""
