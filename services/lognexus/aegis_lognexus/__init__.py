"""Log nexus: from logs and flight records to a cause and a suspect."""
