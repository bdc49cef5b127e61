"""Generated from `proto/aegis/v1/*.proto` by `python -m aegis_proto.stubs`; never edited."""
