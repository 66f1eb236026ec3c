/*
 * A library that answers NVML's calls from a text file, so that pynvml and the code above it run
 * without a driver. The signatures are those of NVIDIA's public nvml.h.
 *
 * The file that $FAKE_NVML names is read again at every call; a line is `key value`:
 *
 *   library 1             a value that differs from the one at load time is a driver update
 *   driver.generation 1   a value that differs from the one at nvmlInit is a driver reload
 *   driver.error 999      what calls return after such a reload (default 1, UNINITIALIZED)
 *   count 2
 *   nvmlInitWithFlags.returns 9
 *   gpu0.uuid GPU-...     a key that is missing makes its call return NOT_SUPPORTED
 *   gpu0.returns 15       every call about GPU 0 returns GPU_IS_LOST
 *   gpu0.nvmlDeviceGetPowerUsage.returns 3
 *   gpu0.nvmlDeviceGetPowerUsage.hangs 1     the call returns when the line is gone
 *   gpu0.mig0.uuid MIG-...
 *   gpu0.samples 1000:40 1200:60    per cent of time in which the GPU was at work, by microsecond
 *   gpu0.power_samples 1000:250000    milliwatts, by microsecond
 *   gpu0.gpm 2:0.757 20:100    GPM's values by their number, 0 for others as a driver says; or
 *   gpu0.gpm 100 200      MiB/s sent and received over PCIe, others are not supported
 *   gpu0.gpm1 1:40        those of GPU instance 1
 *   gpu0.process0 PID BYTES COMPUTE|GRAPHICS|MPS [GPU_INSTANCE COMPUTE_INSTANCE [SM_PERCENT]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       MISMATCH = 18 };
enum { MIGS = 16, PROCESSES = 64, NOTHING = -1 };

typedef void *device_t;
typedef unsigned int u32;
typedef unsigned long long u64;

static char library_at_load[64];
static char generation_at_init[64];
static int initialised;

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096];
    size_t length = strlen(key);
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(file);
    return found;
}

static int returns(const char *subject, const char *call) {
    char key[256], value[64];
    snprintf(key, sizeof key, "%s%s%s.returns", subject, *subject ? "." : "", call);
    return lookup(key, value, sizeof value) ? atoi(value) : OK;
}

__attribute__((constructor)) static void loaded(void) {
    lookup("library", library_at_load, sizeof library_at_load);
}

static int outdated(void) {
    char now[64] = "";
    lookup("library", now, sizeof now);
    return strcmp(now, library_at_load) != 0;
}

/* What every call about a device begins with. A handle is 1 + gpu * 32 + (mig + 1). */
static int begin(device_t device, const char *call, char *name, size_t size) {
    size_t number = (size_t)device - 1;
    int gpu = (int)(number / 32), mig = (int)(number % 32) - 1, code;
    char key[256], value[64] = "";
    if (!initialised) return UNINITIALIZED;
    if (!device) return INVALID;
    lookup("driver.generation", value, sizeof value);
    if (outdated()) return MISMATCH;
    if (strcmp(value, generation_at_init))
        return lookup("driver.error", value, sizeof value) ? atoi(value) : UNINITIALIZED;
    snprintf(key, sizeof key, "gpu%d.%s.hangs", gpu, call);
    while (lookup(key, value, sizeof value)) usleep(10000);
    snprintf(key, sizeof key, "gpu%d.returns", gpu);
    if (lookup(key, value, sizeof value)) return atoi(value);
    if (mig == NOTHING) snprintf(name, size, "gpu%d", gpu);
    else snprintf(name, size, "gpu%d.mig%d", gpu, mig);
    code = returns(name, call);
    return code;
}

static int text(device_t device, const char *call, const char *field, char *out, u32 size) {
    char name[64], key[256];
    int code = begin(device, call, name, sizeof name);
    if (code) return code;
    snprintf(key, sizeof key, "%s.%s", name, field);
    return lookup(key, out, size) ? OK : NOT_SUPPORTED;
}

static int number(device_t device, const char *call, const char *field, u64 *out) {
    char value[64];
    int code = text(device, call, field, value, sizeof value);
    if (!code) *out = strtoull(value, NULL, 10);
    return code;
}

static int small(device_t device, const char *call, const char *field, u32 *out) {
    u64 value;
    int code = number(device, call, field, &value);
    if (!code) *out = (u32)value;
    return code;
}

int nvmlInitWithFlags(u32 flags) {
    int code = returns("", "nvmlInitWithFlags");
    (void)flags;
    if (code) return code;
    if (outdated()) return MISMATCH;
    generation_at_init[0] = 0;
    lookup("driver.generation", generation_at_init, sizeof generation_at_init);
    initialised++;
    return OK;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, u32 size) {
    if (!initialised) return UNINITIALIZED;
    return lookup("driver.version", out, size) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(u32 *out) {
    char value[64];
    int code = returns("", "nvmlDeviceGetCount_v2");
    if (!initialised) return UNINITIALIZED;
    if (code) return code;
    if (outdated()) return MISMATCH;
    *out = lookup("count", value, sizeof value) ? (u32)atoi(value) : 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, device_t *out) {
    char name[64];
    *out = (device_t)(size_t)(1 + index * 32);
    return begin(*out, "nvmlDeviceGetHandleByIndex_v2", name, sizeof name);
}

#define TEXT(CALL, FIELD) \
    int CALL(device_t d, char *out, u32 size) { return text(d, #CALL, FIELD, out, size); }
#define SMALL(CALL, FIELD) \
    int CALL(device_t d, u32 *out) { return small(d, #CALL, FIELD, out); }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
SMALL(nvmlDeviceGetMinorNumber, "minor")
SMALL(nvmlDeviceGetPowerUsage, "power")
SMALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
SMALL(nvmlDeviceGetGpuInstanceId, "gpu_instance")
SMALL(nvmlDeviceGetComputeInstanceId, "compute_instance")

int nvmlDeviceGetTotalEnergyConsumption(device_t d, u64 *out) {
    return number(d, "nvmlDeviceGetTotalEnergyConsumption", "energy", out);
}

int nvmlDeviceGetTemperature(device_t d, int sensor, u32 *out) {
    (void)sensor;
    return small(d, "nvmlDeviceGetTemperature", "temperature", out);
}

int nvmlDeviceGetClockInfo(device_t d, int clock, u32 *out) {
    char field[32];
    snprintf(field, sizeof field, "clock%d", clock);
    return small(d, "nvmlDeviceGetClockInfo", field, out);
}

int nvmlDeviceGetTotalEccErrors(device_t d, int error, int counter, u64 *out) {
    char field[32];
    snprintf(field, sizeof field, "ecc%d.%d", error, counter);
    return number(d, "nvmlDeviceGetTotalEccErrors", field, out);
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text(d, "nvmlDeviceGetPciInfo_v3", "pci", out->bus_id, sizeof out->bus_id);
}

struct utilization { u32 gpu, memory; };

int nvmlDeviceGetUtilizationRates(device_t d, struct utilization *out) {
    out->memory = 0;
    return small(d, "nvmlDeviceGetUtilizationRates", "utilization", &out->gpu);
}

struct reading { u64 at; union { double real; u32 small; unsigned long middle; u64 large; } value; };

int nvmlDeviceGetSamples(device_t d, int kind, u64 since, int *type, u32 *count,
                         struct reading *out) {
    char value[4096], *word;
    u32 n = 0, room = *count;
    const char *key = kind ? "samples" : "power_samples";
    int code = text(d, "nvmlDeviceGetSamples", key, value, sizeof value);
    if (code) return code;
    *type = 1; /* unsigned int */
    for (word = strtok(value, " "); word; word = strtok(NULL, " ")) {
        u64 at;
        u32 percent;
        if (sscanf(word, "%llu:%u", &at, &percent) != 2 || at <= since) continue;
        if (out && n < room) {
            out[n].at = at;
            out[n].value.small = percent;
        }
        n++;
    }
    *count = n;
    return n ? OK : NOT_FOUND;
}

struct memory { u64 total, free, used; };

int nvmlDeviceGetMemoryInfo(device_t d, struct memory *out) {
    int code = number(d, "nvmlDeviceGetMemoryInfo", "memory.total", &out->total);
    if (!code) code = number(d, "nvmlDeviceGetMemoryInfo", "memory.used", &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}

struct memory2 { u32 version; u64 total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory2 *out) {
    int code = number(d, "nvmlDeviceGetMemoryInfo_v2", "memory.total", &out->total);
    if (!code) code = number(d, "nvmlDeviceGetMemoryInfo_v2", "memory.used", &out->used);
    if (!code && number(d, "nvmlDeviceGetMemoryInfo_v2", "memory.reserved", &out->reserved))
        out->reserved = 0;
    return code;
}

struct field {
    u32 id, scope;
    long long timestamp, latency;
    int type, code;
    union { double real; u32 small; unsigned long middle; u64 large; } value;
};

int nvmlDeviceGetFieldValues(device_t d, int count, struct field *fields) {
    char name[64], key[32];
    int i, code = begin(d, "nvmlDeviceGetFieldValues", name, sizeof name);
    for (i = 0; !code && i < count; i++) {
        snprintf(key, sizeof key, "field%u", fields[i].id);
        fields[i].type = 3; /* unsigned long long */
        fields[i].code = number(d, "nvmlDeviceGetFieldValues", key, &fields[i].value.large);
    }
    return code;
}

int nvmlDeviceGetMigMode(device_t d, u32 *current, u32 *pending) {
    int code = small(d, "nvmlDeviceGetMigMode", "mig", current);
    if (!code) *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t d, u32 *out) {
    char name[64];
    int code = begin(d, "nvmlDeviceGetMaxMigDeviceCount", name, sizeof name);
    *out = 7;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, u32 index, device_t *out) {
    char name[64], key[96], value[96];
    int code = begin(d, "nvmlDeviceGetMigDeviceHandleByIndex", name, sizeof name);
    if (code) return code;
    snprintf(key, sizeof key, "%s.mig%u.uuid", name, index);
    if (index >= MIGS || !lookup(key, value, sizeof value)) return NOT_FOUND;
    *out = (device_t)((size_t)d + 1 + index);
    return OK;
}

struct attributes { u32 sms, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; u64 mb; };

int nvmlDeviceGetAttributes_v2(device_t d, struct attributes *out) {
    int code;
    memset(out, 0, sizeof *out);
    code = small(d, "nvmlDeviceGetAttributes_v2", "slices", &out->slices);
    if (!code) code = small(d, "nvmlDeviceGetAttributes_v2", "compute_slices", &out->compute_slices);
    return code;
}

struct profile { u32 id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; u64 mb; };

int nvmlDeviceGetGpuInstanceProfileInfo(device_t d, u32 profile, struct profile *out) {
    char field[32];
    memset(out, 0, sizeof *out);
    snprintf(field, sizeof field, "profile%u", profile);
    return small(d, "nvmlDeviceGetGpuInstanceProfileInfo", field, &out->slices);
}

struct support { u32 version, supported; };
struct gpm_sample { char numbers[512]; };
struct gpm_metric { u32 id; int code; double value; const char *names[3]; };
struct gpm_request { u32 version, count; struct gpm_sample *from, *to; struct gpm_metric metric[1]; };

int nvmlGpmQueryDeviceSupport(device_t d, struct support *out) {
    char name[64];
    int code = begin(d, "nvmlGpmQueryDeviceSupport", name, sizeof name);
    out->supported = 1;
    return code;
}

int nvmlGpmSampleAlloc(struct gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return OK;
}

int nvmlGpmMigSampleGet(device_t d, u32 gpu_instance, struct gpm_sample *sample) {
    char field[32];
    snprintf(field, sizeof field, "gpm%u", gpu_instance);
    return text(d, "nvmlGpmMigSampleGet", field, sample->numbers, sizeof sample->numbers);
}

int nvmlGpmSampleGet(device_t d, struct gpm_sample *sample) {
    return text(d, "nvmlGpmSampleGet", "gpm", sample->numbers, sizeof sample->numbers);
}

/* The value of a number, from the text of a sample. */
static int gpm_value(const char *text, u32 id, double *out) {
    const char *at = text;
    int has_numbers = strchr(text, ':') != NULL;
    *out = 0;
    if (!has_numbers) {
        const char *second = strchr(text, ' ');
        if (id != 20 && id != 21) return NOT_SUPPORTED;
        *out = atof(id == 21 && second ? second : text);
        return OK;
    }
    while (*at) {
        char *colon;
        unsigned long number = strtoul(at, &colon, 10);
        if (*colon == ':' && number == id) *out = atof(colon + 1);
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return OK;
}

int nvmlGpmMetricsGet(struct gpm_request *request) {
    u32 i;
    for (i = 0; i < request->count; i++) {
        struct gpm_metric *m = &request->metric[i];
        m->code = gpm_value(request->to->numbers, m->id, &m->value);
    }
    return request->from->numbers[0] ? OK : INVALID;
}

struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };
struct sample { u32 pid; u64 at; u32 sm, memory, encoder, decoder; };

/* Fills `found` and `busy` with the processes of one kind (any kind for NULL). */
static u32 processes(const char *gpu, const char *kind, struct process *found, u32 *busy) {
    char key[96], value[256], word[16];
    u32 i, n = 0;
    for (i = 0; i < PROCESSES; i++) {
        struct process p = {0, 0, 0xFFFFFFFFu, 0xFFFFFFFFu};
        u32 sm = 0;
        snprintf(key, sizeof key, "%s.process%u", gpu, i);
        if (!lookup(key, value, sizeof value)) continue;
        sscanf(value, "%u %llu %15s %u %u %u", &p.pid, &p.memory, word, &p.gpu_instance,
               &p.compute_instance, &sm);
        if (kind && strcmp(kind, word)) continue;
        found[n] = p;
        busy[n++] = sm;
    }
    return n;
}

static int listed(device_t d, const char *call, const char *kind, u32 *count,
                  struct process *out) {
    char name[64];
    struct process found[PROCESSES];
    u32 busy[PROCESSES], n, room = *count;
    int code = begin(d, call, name, sizeof name);
    if (code) return code;
    n = processes(name, kind, found, busy);
    *count = n;
    if (n > room) return TOO_SMALL;
    if (n) memcpy(out, found, n * sizeof *out);
    return OK;
}

#define LISTED(CALL, KIND) \
    int CALL(device_t d, u32 *n, struct process *out) { return listed(d, #CALL, KIND, n, out); }

LISTED(nvmlDeviceGetComputeRunningProcesses_v3, "COMPUTE")
LISTED(nvmlDeviceGetGraphicsRunningProcesses_v3, "GRAPHICS")
LISTED(nvmlDeviceGetMPSComputeRunningProcesses_v3, "MPS")

int nvmlDeviceGetProcessUtilization(device_t d, struct sample *out, u32 *count, u64 since) {
    char name[64];
    struct process found[PROCESSES];
    u32 busy[PROCESSES], i, n, room = *count;
    int code = begin(d, "nvmlDeviceGetProcessUtilization", name, sizeof name);
    (void)since;
    if (code) return code;
    n = processes(name, NULL, found, busy);
    *count = n;
    if (!n) return NOT_FOUND;
    if (!out || n > room) return TOO_SMALL;
    for (i = 0; i < n; i++) {
        struct sample s = {found[i].pid, 1000 + i, busy[i], 0, 0, 0};
        out[i] = s;
    }
    return OK;
}
