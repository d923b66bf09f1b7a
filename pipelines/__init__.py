"""The offline build: corpus readers, planner, Ray workers, commit log, driver."""
