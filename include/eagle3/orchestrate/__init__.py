"""Speaks Airflow: operators, sensors, triggers, the trigger form. The only package that imports airflow."""
