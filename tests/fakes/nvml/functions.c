/* The functions of libnvidia-ml.so.1 that the exporter calls, over the state of state.c.
 *
 * Written from the public documentation of NVML; sizes and offsets of the structs are held against
 * pynvml's in a test, through fake_nvml_layout below. Which functions a build exports is decided by
 * the linker's version script, so that an older library can be had by leaving some out.
 */
#include "calls.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES_GPU_UTILIZATION = 1, SAMPLES_MEMORY_UTILIZATION = 2 };
static const unsigned MEMORY_V2 = 0x02000028u;
static const unsigned TEMPERATURE_V1 = 0x0100000Cu;

struct utilization { unsigned gpu, memory; };
struct memory_v1 { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct value_sample { unsigned long long timestamp; union value value; };
struct temperature_v1 { unsigned version; unsigned sensor; int temperature; };
struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

int sessions;

/* Sizes in the order that the test names them. */
unsigned fake_nvml_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {
        sizeof(struct utilization),    sizeof(struct memory_v1),      sizeof(struct memory_v2),
        sizeof(struct value_sample),   sizeof(struct temperature_v1), sizeof(struct field_value),
        sizeof(struct pci_info),       offsetof(struct memory_v2, free),
        offsetof(struct field_value, value), offsetof(struct pci_info, bus_id),
    };
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

/* What a call on the system answers before it answers itself. */
nvml_return system_call(const char *function) {
    nvml_return code = state_fault(function, EVERY_DEVICE);
    if (code != SUCCESS)
        return code;
    return sessions > 0 ? SUCCESS : UNINITIALIZED;
}

nvml_return part_call(const char *function, nvml_device device, nvml_device *gpu,
                      struct mig **mig) {
    size_t offset = (size_t)((char *)device - (char *)state.devices);
    size_t index = offset / sizeof *state.devices;
    nvml_return code;
    *mig = NULL;
    if (index >= DEVICES_MAX)
        return INVALID_ARGUMENT;
    *gpu = &state.devices[index];
    code = device_call(function, *gpu);
    if (code != SUCCESS || offset % sizeof *state.devices == 0)
        return code;
    *mig = (struct mig *)(void *)device;
    if ((*gpu)->mig_mode && (*mig)->uuid[0] != '\0')
        return SUCCESS;
    done();
    return INVALID_ARGUMENT; /* it was destroyed */
}

/* The same for a call on a device; the lock is held when, and only when, it answers SUCCESS. */
nvml_return device_call(const char *function, nvml_device device) {
    nvml_return code = SUCCESS;
    size_t offset = (size_t)((char *)device - (char *)state.devices);
    int index = (int)(offset / sizeof *state.devices);
    if (offset % sizeof *state.devices != 0 || index >= DEVICES_MAX)
        return INVALID_ARGUMENT;
    code = state_fault(function, index);
    if (code != SUCCESS)
        return code;
    pthread_mutex_lock(&state_lock);
    if (sessions <= 0)
        code = UNINITIALIZED;
    else if (index >= state.count)
        code = INVALID_ARGUMENT;
    else if (device->lost)
        code = GPU_IS_LOST;
    if (code != SUCCESS)
        pthread_mutex_unlock(&state_lock);
    return code;
}

nvml_return done(void) {
    pthread_mutex_unlock(&state_lock);
    return SUCCESS;
}

nvml_return text(const char *value, char *out, unsigned size) {
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    memcpy(out, value, strlen(value) + 1);
    return SUCCESS;
}

nvml_return nvmlInitWithFlags(unsigned flags) {
    nvml_return code = state_fault("nvmlInitWithFlags", EVERY_DEVICE);
    (void)flags;
    if (code != SUCCESS)
        return code;
    pthread_mutex_lock(&state_lock);
    if (!state.loaded)
        code = DRIVER_NOT_LOADED;
    else
        sessions++;
    pthread_mutex_unlock(&state_lock);
    return code;
}

nvml_return nvmlShutdown(void) {
    nvml_return code = system_call("nvmlShutdown");
    if (code == SUCCESS)
        sessions--;
    return code;
}

const char *nvmlErrorString(nvml_return code) {
    static _Thread_local char name[32];
    snprintf(name, sizeof name, "fake error %d", code);
    return name;
}

nvml_return nvmlSystemGetDriverVersion(char *out, unsigned size) {
    nvml_return code = system_call(__func__);
    return code != SUCCESS ? code : text(state.driver_version, out, size);
}

nvml_return nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    nvml_return code = system_call(__func__);
    return code != SUCCESS ? code : text(state.nvml_version, out, size);
}

nvml_return nvmlSystemGetCudaDriverVersion(int *out) {
    nvml_return code = system_call(__func__);
    if (code == SUCCESS)
        *out = (int)state.cuda_version;
    return code;
}

nvml_return nvmlDeviceGetCount_v2(unsigned *out) {
    nvml_return code = system_call(__func__);
    if (code == SUCCESS)
        *out = (unsigned)state.count;
    return code;
}

nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *out) {
    nvml_return code = system_call("");
    if (code != SUCCESS)
        return code;
    if (index >= DEVICES_MAX)
        return INVALID_ARGUMENT;
    code = device_call(__func__, &state.devices[index]);
    if (code != SUCCESS)
        return code;
    *out = &state.devices[index];
    return done();
}

nvml_return nvmlDeviceGetUUID(nvml_device device, char *out, unsigned size) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    code = text(mig ? mig->uuid : gpu->uuid, out, size);
    done();
    return code;
}

nvml_return nvmlDeviceGetName(nvml_device device, char *out, unsigned size) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    code = text(mig ? mig->name : gpu->name, out, size);
    done();
    return code;
}

nvml_return nvmlDeviceGetMinorNumber(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->minor;
    return done();
}

nvml_return nvmlDeviceGetPciInfo_v3(nvml_device device, struct pci_info *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, device->bus_id, sizeof out->bus_id);
    return done();
}

nvml_return nvmlDeviceGetMemoryInfo(nvml_device device, struct memory_v1 *out) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    if (mig) {
        out->total = (unsigned long long)mig->memory_total;
        out->used = (unsigned long long)mig->memory_used;
        out->free = out->total - out->used;
        return done();
    }
    /* The first version knows no reserved memory and counts it as used. */
    out->total = (unsigned long long)gpu->memory_total;
    out->used = (unsigned long long)(gpu->memory_used + gpu->memory_reserved);
    out->free = gpu->memory_free >= 0 ? (unsigned long long)gpu->memory_free
                                         : out->total - out->used;
    return done();
}

nvml_return nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct memory_v2 *out) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    if (out->version != MEMORY_V2) {
        done();
        return ARGUMENT_VERSION_MISMATCH;
    }
    if (mig) {
        out->total = (unsigned long long)mig->memory_total;
        out->used = (unsigned long long)mig->memory_used;
        out->reserved = 0;
        out->free = out->total - out->used;
        return done();
    }
    out->total = (unsigned long long)gpu->memory_total;
    out->reserved = (unsigned long long)gpu->memory_reserved;
    out->used = (unsigned long long)gpu->memory_used;
    out->free = gpu->memory_free >= 0 ? (unsigned long long)gpu->memory_free
                                         : out->total - out->used - out->reserved;
    return done();
}

nvml_return nvmlDeviceGetPowerUsage(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->power_mw;
    return done();
}

nvml_return nvmlDeviceGetEnforcedPowerLimit(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->power_limit_mw;
    return done();
}

nvml_return nvmlDeviceGetTotalEnergyConsumption(nvml_device device, unsigned long long *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned long long)device->energy_mj;
    return done();
}

nvml_return nvmlDeviceGetTemperature(nvml_device device, unsigned sensor, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->temperature;
    done();
    return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

nvml_return nvmlDeviceGetTemperatureV(nvml_device device, struct temperature_v1 *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    out->temperature = (int)device->temperature;
    done();
    return out->version == TEMPERATURE_V1 ? SUCCESS : ARGUMENT_VERSION_MISMATCH;
}

nvml_return nvmlDeviceGetUtilizationRates(nvml_device device, struct utilization *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    out->gpu = (unsigned)device->utilization[BUFFER_GPU];
    out->memory = (unsigned)device->utilization[BUFFER_MEMORY];
    return done();
}

/* Without `out` it tells how many samples the buffer can hold, as the driver does. */
nvml_return nvmlDeviceGetSamples(nvml_device device, unsigned type, unsigned long long since_us,
                                 unsigned *value_type, unsigned *count, struct value_sample *out) {
    struct sample found[RING_MAX];
    enum buffer buffer = type == SAMPLES_GPU_UTILIZATION ? BUFFER_GPU : BUFFER_MEMORY;
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *value_type = (unsigned)device->sample_value_type;
    if (type != SAMPLES_GPU_UTILIZATION && type != SAMPLES_MEMORY_UTILIZATION) {
        done();
        return NOT_SUPPORTED;
    }
    if (out == NULL) {
        *count = RING_MAX;
        return done();
    }
    *count = state_samples(device, buffer, since_us, found, *count < RING_MAX ? *count : RING_MAX);
    for (unsigned i = 0; i < *count; i++) {
        out[i].timestamp = found[i].at_us;
        out[i].value = typed(found[i].value, device->sample_value_type);
    }
    done();
    return *count > 0 ? SUCCESS : NOT_FOUND;
}
