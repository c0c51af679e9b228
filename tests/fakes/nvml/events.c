/* Errors that the driver announces: a set tells what the file named after a GPU was registered. */
#include "calls.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { XID_EVENT = 0x8, POLL_US = 100000 }; /* seldom: a driver that waits costs nothing */

struct event_set {
    unsigned char registered[DEVICES_MAX];
    int told[DEVICES_MAX];
};
struct event_data {
    nvml_device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

unsigned fake_nvml_events_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {sizeof(struct event_data)};
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

nvml_return nvmlEventSetCreate(struct event_set **out) {
    nvml_return code = system_call(__func__);
    if (code == SUCCESS)
        *out = calloc(1, sizeof **out);
    return code;
}

nvml_return nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types,
                                     struct event_set *set) {
    nvml_return code = device_call(__func__, device);
    int index = (int)(device - state.devices);
    if (code != SUCCESS)
        return code;
    if (!device->events || types != XID_EVENT)
        code = NOT_SUPPORTED;
    else {
        set->registered[index] = 1;
        set->told[index] = device->xids_count;
    }
    done();
    return code;
}

static int next_event(struct event_set *set, struct event_data *out) {
    for (int i = 0; i < state.count && i < DEVICES_MAX; i++) {
        struct device *device = &state.devices[i];
        if (!set->registered[i] || set->told[i] >= device->xids_count)
            continue;
        *out = (struct event_data){device, XID_EVENT,
                                   (unsigned long long)device->xids[set->told[i]++], 0xFFFFFFFFu,
                                   0xFFFFFFFFu};
        return 1;
    }
    return 0;
}

nvml_return nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned wait_ms) {
    for (unsigned waited_us = 0;; waited_us += POLL_US) {
        nvml_return code = system_call(__func__);
        int found;
        if (code != SUCCESS)
            return code;
        pthread_mutex_lock(&state_lock);
        found = next_event(set, out);
        done();
        if (found)
            return SUCCESS;
        if (waited_us >= wait_ms * 1000u)
            return TIMEOUT;
        usleep(wait_ms * 1000u < POLL_US ? wait_ms * 1000u : POLL_US);
    }
}

nvml_return nvmlEventSetFree(struct event_set *set) {
    nvml_return code = system_call(__func__);
    if (code == SUCCESS)
        free(set);
    return code;
}
