"""EAGLE-3 draft-model training on remote GPU hosts, driven by Apache Airflow over SSH."""

__version__ = "0.1.0"
