"""What the pipeline knows without Airflow and without a host: steps, presets, taps, dialects, failures, estimates."""
