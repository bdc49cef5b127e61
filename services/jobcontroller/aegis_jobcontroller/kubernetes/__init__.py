"""Platform `kubernetes`: one pod per attempt of a worker; jobs are AegisJob objects. See `platform`."""
