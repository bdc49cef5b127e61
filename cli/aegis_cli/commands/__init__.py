"""The commands, one module per noun. Each reads its options, asks the services and prints; nothing is decided here."""
