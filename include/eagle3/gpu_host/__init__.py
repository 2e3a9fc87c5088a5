"""Reaches GPU hosts: SSH, detached jobs, byte-exact logs, the code bundle. Knows nothing of Airflow or of EAGLE-3."""
