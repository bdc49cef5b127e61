"""Which checkpoints in a folder are complete: `tree` (what a folder holds), `layouts` (what each framework's looks like), `watch` (news of a run)."""
