"""Settings, logging, telemetry, health and lifecycle of every service.

A service's `__main__` is: `run("scheduler", SchedulerSettings.load(), main)`.
"""
