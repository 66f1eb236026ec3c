/*
 * Loads of a GPU whose truth is known without NVML, for benchmarks/gpu_accuracy.py.
 *
 *   gpu_load MODE FILE key=value ...
 *
 * Appends a line of JSON to FILE with what was done: seconds of kernels or copies by CUDA events,
 * bytes, and the times of day of what happened. Compile with `nvcc -O2 -arch=native`.
 *
 *   duty      percent=33 seconds=5 blocks=0 gib=0    kernels for a part of each 100 ms
 *   copy      seconds=4 way=h2d|d2d                  copies and no kernels
 *   fp64      seconds=4                              FP64 units, counted by the GPU's own clock
 *   spike     part=0.6 milliseconds=200              memory for a moment
 *   orphan    gib=4 parent=1 child=3                 a forked child keeps what its parent took
 */
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

typedef unsigned long long u64;

static int argument_count;
static char **arguments;
static FILE *file;

static const char *text(const char *key, const char *otherwise) {
    size_t length = strlen(key);
    for (int i = 3; i < argument_count; i++)
        if (!strncmp(arguments[i], key, length) && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    return otherwise;
}

static double number(const char *key, double otherwise) {
    const char *found = text(key, NULL);
    return found ? atof(found) : otherwise;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void nap(double seconds) {
    if (seconds > 0) usleep((useconds_t)(seconds * 1e6));
}

static void check(cudaError_t error, int line) {
    if (error == cudaSuccess) return;
    fprintf(file, "{\"error\": \"line %d: %s\"}\n", line, cudaGetErrorString(error));
    exit(3);
}
#define CHECK(call) check((call), __LINE__)

__device__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Eight chains of FP32 for a set time. */
__global__ void burn(u64 duration, float *out) {
    u64 begun = nanoseconds();
    float x[8];
    for (int j = 0; j < 8; j++) x[j] = threadIdx.x * 1e-6f + j;
    while (nanoseconds() - begun < duration)
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 8; j++) x[j] = fmaf(x[j], 0.999f, 0.5f);
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += x[j];
    if (sum == 123.456f) *out = sum;
}

/* Eight chains of FP64, and the most cycles that a block took. */
__global__ void burn_fp64(long rounds, double *out, u64 *cycles) {
    long long begun = clock64();
    double x[8];
    for (int j = 0; j < 8; j++) x[j] = threadIdx.x * 1e-6 + j;
    for (long i = 0; i < rounds; i++)
        for (int j = 0; j < 8; j++) x[j] = fma(x[j], 0.999, 0.5);
    double sum = 0;
    for (int j = 0; j < 8; j++) sum += x[j];
    if (sum == 123.456) *out = sum;
    atomicMax(cycles, (u64)(clock64() - begun));
}

static cudaDeviceProp device;
static float *sink;

static void open_device() {
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    CHECK(cudaFree(0));
    CHECK(cudaGetDeviceProperties(&device, 0));
    CHECK(cudaMalloc(&sink, 256));
}

static void *take(double bytes) {
    void *memory = NULL;
    CHECK(cudaMalloc(&memory, (size_t)bytes));
    CHECK(cudaMemset(memory, 1, (size_t)bytes));
    CHECK(cudaDeviceSynchronize());
    return memory;
}

static void duty() {
    double seconds = number("seconds", 5), part = number("percent", 100) / 100, period = 0.1;
    int blocks = (int)number("blocks", 0);
    double began = now(), next = began, busy = 0;
    cudaEvent_t from, to;
    open_device();
    if (!blocks) blocks = device.multiProcessorCount;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    if (number("gib", 0) > 0) take(number("gib", 0) * (1 << 30));
    for (next = now(); now() - began < seconds; next += period) {
        float milliseconds;
        int pieces = part >= 1 ? 20 : 1;
        CHECK(cudaEventRecord(from));
        for (int i = 0; i < pieces; i++)
            burn<<<blocks, 128>>>((u64)(part * period * 1e9 / pieces), sink);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        busy += milliseconds / 1e3;
        nap(part >= 1 ? 0 : next + period - now());
    }
    fprintf(file, "{\"busy\": %.6f, \"sm_count\": %d, \"blocks\": %d, \"warps_per_sm\": %d}\n", busy,
            device.multiProcessorCount, blocks, device.maxThreadsPerMultiProcessor / 32);
}

static void copy() {
    int is_local = !strcmp(text("way", "h2d"), "d2d");
    double seconds = number("seconds", 4), began;
    size_t size = is_local ? (size_t)4 << 30 : (size_t)256 << 20;
    void *source, *target;
    cudaEvent_t from, to, turn[2];
    float milliseconds;
    long copies = 0;
    int clock = 0, width = 0;
    open_device();
    if (is_local) CHECK(cudaMalloc(&source, size));
    else CHECK(cudaMallocHost(&source, size));
    CHECK(cudaMalloc(&target, size));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    CHECK(cudaEventCreate(&turn[0]));
    CHECK(cudaEventCreate(&turn[1]));
    cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, 0);
    cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, 0);
    CHECK(cudaEventRecord(from));
    for (began = now(); now() - began < seconds; copies++) {
        if (copies >= 2) CHECK(cudaEventSynchronize(turn[copies & 1]));
        CHECK(cudaMemcpyAsync(target, source, size, cudaMemcpyDefault));
        CHECK(cudaEventRecord(turn[copies & 1]));
    }
    CHECK(cudaEventRecord(to));
    CHECK(cudaEventSynchronize(to));
    CHECK(cudaEventElapsedTime(&milliseconds, from, to));
    fprintf(file, "{\"busy\": %.6f, \"bytes\": %.0f, \"dram_peak\": %.0f}\n", milliseconds / 1e3,
            (double)size * copies, 2.0 * clock * 1e3 * width / 8);
}

static void fp64() {
    double seconds = number("seconds", 4), began = now(), busy = 0, active = 0;
    long rounds = 200000;
    int per_sm = 4, threads = 256;
    u64 *cycles, most;
    cudaEvent_t from, to;
    open_device();
    CHECK(cudaMalloc(&cycles, sizeof *cycles));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    while (now() - began < seconds) {
        float milliseconds;
        CHECK(cudaMemset(cycles, 0, sizeof *cycles));
        CHECK(cudaEventRecord(from));
        burn_fp64<<<device.multiProcessorCount * per_sm, threads>>>(rounds, (double *)sink, cycles);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        CHECK(cudaMemcpy(&most, cycles, sizeof most, cudaMemcpyDefault));
        busy += milliseconds / 1e3;
        /* 64 FMAs of FP64 in a cycle on each multiprocessor of a GH100. */
        active += milliseconds / 1e3 * (8.0 * rounds * threads * per_sm / 64) / most;
    }
    fprintf(file, "{\"busy\": %.6f, \"fp64\": %.6f}\n", busy, active);
}

static void spike() {
    size_t available, total;
    double begun, taken;
    void *memory;
    open_device();
    nap(1);
    CHECK(cudaMemGetInfo(&available, &total));
    begun = now();
    CHECK(cudaMalloc(&memory, (size_t)(number("part", 0.6) * total)));
    taken = now();
    nap(number("milliseconds", 200) / 1e3);
    CHECK(cudaFree(memory));
    fprintf(file, "{\"busy\": 0, \"bytes\": %.0f, \"held\": %.4f, \"took\": %.4f}\n",
            (double)(size_t)(number("part", 0.6) * total), now() - taken, taken - begun);
    nap(1);
}

static void orphan() {
    double bytes = number("gib", 4) * (1 << 30);
    open_device();
    take(bytes);
    if (fork()) {
        nap(number("parent", 1));
        fprintf(file, "{\"busy\": 0, \"bytes\": %.0f, \"parent_ended\": %.6f}\n", bytes, now());
        fflush(file);
        _exit(0);
    }
    nap(number("parent", 1) + number("child", 3));
    fprintf(file, "{\"child_ended\": %.6f}\n", now());
    fflush(file);
    _exit(0);
}

int main(int count, char **values) {
    if (count < 3 || !(file = fopen(values[2], "a"))) {
        fprintf(stderr, "usage: gpu_load MODE FILE key=value ...\n");
        return 2;
    }
    argument_count = count;
    arguments = values;
    setvbuf(file, NULL, _IOLBF, 0);
    if (!strcmp(values[1], "duty")) duty();
    else if (!strcmp(values[1], "copy")) copy();
    else if (!strcmp(values[1], "fp64")) fp64();
    else if (!strcmp(values[1], "spike")) spike();
    else if (!strcmp(values[1], "orphan")) orphan();
    else return 2;
    return 0;
}
