/* GPM: samples that are lent and given back, and metrics between two of them. */
#include "calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { METRICS_MAX = 477, SUPPORT_VERSION = 1, METRICS_VERSION = 1, STEP_MIN_US = 100000 };

struct gpm_support { unsigned version, supported; };
struct gpm_sample {
    nvml_device device; /* NULL until it was taken */
    int64_t gpu_instance;
    uint64_t at_us;
};
struct gpm_answer {
    unsigned metric;
    nvml_return result;
    double value;
    char *names[3];
};
struct gpm_query {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_answer answers[METRICS_MAX];
};

static int lent;

/* How many samples are lent: a leak shows. */
int fake_nvml_gpm_lent(void) { return lent; }

unsigned fake_nvml_gpm_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {sizeof(struct gpm_support), sizeof(struct gpm_query)};
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

static uint64_t monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

nvml_return nvmlGpmQueryDeviceSupport(nvml_device device, struct gpm_support *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    out->supported = device->gpm_supported != 0;
    done();
    return out->version == SUPPORT_VERSION ? SUCCESS : ARGUMENT_VERSION_MISMATCH;
}

nvml_return nvmlGpmSampleAlloc(struct gpm_sample **out) {
    nvml_return code = system_call(__func__);
    if (code != SUCCESS)
        return code;
    *out = calloc(1, sizeof **out);
    lent++;
    return SUCCESS;
}

nvml_return nvmlGpmSampleFree(struct gpm_sample *sample) {
    nvml_return code = system_call(__func__);
    if (code != SUCCESS)
        return code;
    free(sample);
    lent--;
    return SUCCESS;
}

static nvml_return take(const char *function, nvml_device device, int64_t gpu_instance,
                        struct gpm_sample *sample) {
    nvml_return code = device_call(function, device);
    if (code != SUCCESS)
        return code;
    code = device->gpm_supported ? SUCCESS : NOT_SUPPORTED;
    if (gpu_instance >= 0) {
        int there = 0;
        for (int i = 0; i < MIGS_MAX; i++)
            there |= device->migs[i].uuid[0] && device->migs[i].gpu_instance == gpu_instance;
        if (!device->mig_mode || !there)
            code = NOT_FOUND;
    }
    if (code == SUCCESS)
        *sample = (struct gpm_sample){device, gpu_instance, monotonic_us()};
    done();
    return code;
}

nvml_return nvmlGpmSampleGet(nvml_device device, struct gpm_sample *sample) {
    return take(__func__, device, -1, sample);
}

nvml_return nvmlGpmMigSampleGet(nvml_device device, unsigned gpu_instance,
                                struct gpm_sample *sample) {
    return take(__func__, device, (int64_t)gpu_instance, sample);
}

static void answer(const struct device *device, int64_t gpu_instance, struct gpm_answer *out) {
    out->result = NOT_SUPPORTED;
    out->value = NAN;
    for (int i = 0; i < device->gpm_count; i++) {
        const struct gpm_metric *metric = &device->gpm[i];
        if (metric->id != out->metric)
            continue;
        if (metric->gpu_instance != gpu_instance && metric->gpu_instance != -1)
            continue;
        out->result = SUCCESS;
        out->value = metric->value;
        if (metric->gpu_instance == gpu_instance)
            return; /* said of this instance, and not of all */
    }
}

nvml_return nvmlGpmMetricsGet(struct gpm_query *query) {
    nvml_return code = system_call(__func__);
    const struct gpm_sample *first = query->first, *second = query->second;
    if (code != SUCCESS)
        return code;
    if (query->version != METRICS_VERSION)
        return ARGUMENT_VERSION_MISMATCH;
    if (first == NULL || second == NULL || first->device == NULL ||
        first->device != second->device || first->gpu_instance != second->gpu_instance ||
        query->count > METRICS_MAX)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&state_lock);
    for (unsigned i = 0; i < query->count; i++) {
        if (second->at_us < first->at_us + STEP_MIN_US)
            query->answers[i].result = NO_DATA; /* the counters were not updated in between */
        else
            answer(first->device, first->gpu_instance, &query->answers[i]);
    }
    return done();
}
