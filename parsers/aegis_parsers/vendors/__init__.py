"""The health tools of AMD, Ascend, MetaX and Cambricon."""
