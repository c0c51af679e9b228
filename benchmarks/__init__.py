"""What gpuscale costs and saves, measured side by side with what people run instead."""
