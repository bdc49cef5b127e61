"""InfiniBand and RoCE tools: of one host (sysfs, ibstat, mlxlink ...) and of a whole fabric (ibnetdiscover, ibqueryerrors, ibdiagnet ...)."""
