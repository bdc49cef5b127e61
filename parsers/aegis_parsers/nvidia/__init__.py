"""nvidia-smi in all its forms, and the fabric manager's log."""
