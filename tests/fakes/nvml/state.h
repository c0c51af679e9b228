/* The state of the fake libnvidia-ml.so.1: read from a file that a test replaces while a process runs. */
#ifndef GPUSCALE_FAKE_NVML_STATE_H
#define GPUSCALE_FAKE_NVML_STATE_H

#include <pthread.h>
#include <stdint.h>

enum {
    DEVICES_MAX = 64,
    RING_MAX = 512,
    FAULTS_MAX = 256,
    NAME_MAX_BYTES = 96,
    EVERY_DEVICE = -1, /* a fault on a function of the system, or on every device */
};

enum {
    FIELDS_MAX = 96,
    GPM_MAX = 64,
    MIGS_MAX = 8,
    PROCESSES_MAX = 32,
    XIDS_MAX = 64,
    FANS_MAX = 8,
    CLOCKS = 4,
};

enum buffer { BUFFER_GPU, BUFFER_MEMORY, BUFFERS };

struct sample {
    uint64_t at_us; /* wall time */
    int64_t value;
};

struct ring {
    struct sample samples[RING_MAX];
    uint64_t written; /* samples ever written; the newest RING_MAX are there */
    uint64_t last_us; /* up to here time has been turned into samples; 0 before the first call */
    int explicit_;    /* the file gave the samples themselves: time adds none */
};

/* A value that comes by number; `scope` -1 answers to every scope. */
struct field {
    int64_t id, scope, type, value, result;
};

struct gpm_metric {
    int64_t id, gpu_instance; /* -1 for the whole GPU and every instance */
    double value;
};

struct mig {
    char uuid[NAME_MAX_BYTES]; /* empty where this place is not used: places are sparse */
    char name[NAME_MAX_BYTES];
    int64_t gpu_instance, compute_instance;
    int64_t slices, compute_slices, memory_total, memory_used;
};

struct process {
    int64_t pid, used, gpu_instance, compute_instance, mps;
};

struct process_sample {
    int64_t pid, at_us, sm, memory;
};

struct device {
    char uuid[NAME_MAX_BYTES];
    char name[NAME_MAX_BYTES];
    char bus_id[32];
    int64_t minor;
    int64_t memory_total, memory_reserved, memory_used, memory_free;
    int64_t power_mw, power_limit_mw, energy_mj;
    int64_t temperature, memory_temperature, memory_temperature_return;
    int64_t utilization[BUFFERS]; /* per cent, or whatever a test wants the driver to say */
    int64_t sample_period_us, sample_value_type;
    int64_t lost;
    int64_t clocks[CLOCKS], fans, fan_speed[FANS_MAX], encoder, decoder, reasons, pcie_replays;
    int64_t ecc_mode, remapped[4], license_supported, licensed;
    int64_t gpm_supported, mig_capable, mig_mode, events, process_util_empty;
    struct field fields[FIELDS_MAX];
    struct gpm_metric gpm[GPM_MAX];
    struct mig migs[MIGS_MAX];
    struct process processes[PROCESSES_MAX];
    struct process_sample process_samples[PROCESSES_MAX];
    int64_t xids[XIDS_MAX]; /* every one that the file ever named, oldest first */
    int fields_count, gpm_count, processes_count, process_samples_count, xids_count;
    struct ring rings[BUFFERS];
};

struct fault {
    int device;
    char function[64];
    int code;     /* nvmlReturn_t to answer; 0 for none */
    int delay_ms; /* waited before the answer */
    int hang;     /* waited for until the file no longer says so */
};

struct state {
    int loaded; /* the file could be read at least once */
    int64_t count;
    char driver_version[NAME_MAX_BYTES];
    char nvml_version[NAME_MAX_BYTES];
    int64_t cuda_version;
    struct device devices[DEVICES_MAX];
    struct fault faults[FAULTS_MAX];
    int faults_count;
};

extern struct state state;
extern pthread_mutex_t state_lock;

/* Brings `state` up to the file and to now. The lock is held by the caller. */
void state_refresh(void);

/* Writes the samples of `buffer` younger than `since_us`, oldest first; how many. */
unsigned state_samples(struct device *device, enum buffer buffer, uint64_t since_us,
                       struct sample *out, unsigned room);

/* Meets the faults on `function` for `device`: waits, hangs, and gives the code to answer. */
int state_fault(const char *function, int device);

#endif
