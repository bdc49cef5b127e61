/* A libnvidia-ml.so.1 that tells what FAKE_NVML says ("0.failed=1 1.lost=1 count=2"), so that NVIDIA's own bindings run against it.
   FAKE_NVML_FILE: a file that says it instead, read anew each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *facts(void) {
    static char text[4096] = " ";
    const char *path = getenv("FAKE_NVML_FILE");
    FILE *file;
    if (!path) return getenv("FAKE_NVML");
    if (!(file = fopen(path, "r"))) return NULL;
    text[1 + fread(text + 1, 1, sizeof text - 2, file)] = 0;
    fclose(file);
    return text;
}
static long fact(int gpu, const char *name, long otherwise) {
    char key[64];
    const char *all = facts(), *at;
    if (!all) return otherwise;
    if (gpu >= 0) snprintf(key, sizeof key, " %d.%s=", gpu, name); else snprintf(key, sizeof key, " %s=", name);
    at = strstr(all, key);
    return at ? strtol(at + strlen(key), 0, 0) : otherwise;
}
static int gpu_of(void *device) { return (int)(long)device - 1; }
static int state(void *device) { return fact(gpu_of(device), "lost", 0) ? 15 : fact(gpu_of(device), "reset", 0) ? 16 : 0; }
#define ALIVE if (state(d)) return state(d)

int nvmlInitWithFlags(unsigned flags) { while (fact(-1, "hang", 0)) usleep(10000); return (int)fact(-1, "init", 0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "error %d", code); return text; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)fact(-1, "count", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { if (fact((int)i, "nohandle", 0)) return 15; *d = (void *)(long)(i + 1); return 0; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *d, struct pci *p) {
    ALIVE;
    memset(p, 0, sizeof *p);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x10 + gpu_of(d));
    return 0;
}
int nvmlDeviceGetUUID(void *d, char *text, unsigned size) { ALIVE; snprintf(text, size, "GPU-%d", gpu_of(d)); return 0; }
int nvmlDeviceGetName(void *d, char *text, unsigned size) { ALIVE; snprintf(text, size, "NVIDIA H100"); return 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *t) { ALIVE; *t = (unsigned)fact(gpu_of(d), "temp", 40); return 0; }
int nvmlDeviceGetTemperatureThreshold(void *d, int kind, unsigned *t) { ALIVE; *t = 90; return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, int type, int counter, unsigned long long *n) {
    ALIVE;
    if (fact(gpu_of(d), "eccbroken", 0)) return 999;
    *n = (unsigned long long)fact(gpu_of(d), "ecc", 0);
    return 0;
}
int nvmlDeviceGetRemappedRows(void *d, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
    ALIVE;
    if (fact(gpu_of(d), "old", 0)) return 3;
    *c = 0, *u = (unsigned)fact(gpu_of(d), "remapped", 0), *p = (unsigned)fact(gpu_of(d), "pending", 0), *f = (unsigned)fact(gpu_of(d), "failed", 0);
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *r) { ALIVE; *r = (unsigned long long)fact(gpu_of(d), "reasons", 0); return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *n) { ALIVE; *n = (unsigned)fact(gpu_of(d), "width", 16); return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *n) { ALIVE; *n = 16; return fact(gpu_of(d), "guest", 0) ? 999 : 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *active) {
    ALIVE;
    if (link >= 4) return 2;
    *active = fact(gpu_of(d), "dark", -1) != (long)link && fact(-1, "bridge", 4) > (long)link;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *percent) {
    while (fact(-1, "hang", 0)) usleep(10000);
    ALIVE;
    percent[0] = (unsigned)fact(gpu_of(d), "util", 0), percent[1] = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *bytes) { ALIVE; bytes[0] = 80ull << 30, bytes[1] = 70ull << 30, bytes[2] = 10ull << 30; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *milliwatts) { ALIVE; *milliwatts = 400000; return 0; }
struct process { unsigned pid; unsigned long long bytes; unsigned instance, part; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *all) {
    long pid = fact(gpu_of(d), "pid", 0);
    unsigned room = *n;
    ALIVE;
    *n = pid ? 1 : 0;
    if (pid && (room == 0 || all == NULL)) return 7;
    if (pid) all[0] = (struct process){(unsigned)pid, 1 << 20, ~0u, ~0u};
    return 0;
}
