/* What the files with NVML's functions share: how a call begins and ends. */
#ifndef GPUSCALE_FAKE_NVML_CALLS_H
#define GPUSCALE_FAKE_NVML_CALLS_H

#include "state.h"

typedef int nvml_return;
typedef struct device *nvml_device;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    NO_DATA = 21,
    ARGUMENT_VERSION_MISMATCH = 25,
};

union value {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned value_type;
    nvml_return result;
    union value value;
};
extern int sessions;

/* What a call on the system answers before it answers itself. */
nvml_return system_call(const char *function);

/* The same for a call on a GPU; the lock is held when, and only when, it answers SUCCESS. */
nvml_return device_call(const char *function, nvml_device device);

/* The same for a call that also answers for a MIG instance, which `*mig` then is; else NULL. */
nvml_return part_call(const char *function, nvml_device device, nvml_device *gpu, struct mig **mig);

/* Gives the lock back. */
nvml_return done(void);

nvml_return text(const char *value, char *out, unsigned size);

/* A value in the member that `type` (nvmlValueType_t) names. */
union value typed(int64_t number, int64_t type);

#endif
