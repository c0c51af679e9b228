/* Who runs on a GPU, and samples of what each used. */
#include "calls.h"

#include <string.h>

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_utilization {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
};

unsigned fake_nvml_processes_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {sizeof(struct process_info), sizeof(struct process_utilization)};
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

/* Without room it tells how much is needed, and SUCCESS where nothing runs. */
static nvml_return list(const char *function, nvml_device device, int mps, unsigned *count,
                        struct process_info *out) {
    unsigned found = 0, room = *count;
    nvml_return code = device_call(function, device);
    if (code != SUCCESS)
        return code;
    for (int i = 0; i < device->processes_count; i++) {
        const struct process *process = &device->processes[i];
        if (process->mps != mps)
            continue;
        if (out != NULL && found < room)
            out[found] = (struct process_info){
                (unsigned)process->pid, (unsigned long long)process->used,
                (unsigned)process->gpu_instance, (unsigned)process->compute_instance};
        found++;
    }
    *count = found;
    done();
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvml_return nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count,
                                                    struct process_info *out) {
    return list(__func__, device, 0, count, out);
}

nvml_return nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned *count,
                                                       struct process_info *out) {
    return list(__func__, device, 1, count, out);
}

nvml_return nvmlDeviceGetProcessUtilization(nvml_device device, struct process_utilization *out,
                                            unsigned *count, unsigned long long since_us) {
    unsigned found = 0, room = *count;
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    for (int i = 0; i < device->process_samples_count; i++) {
        const struct process_sample *sample = &device->process_samples[i];
        if ((unsigned long long)sample->at_us <= since_us)
            continue;
        if (out != NULL && found < room)
            out[found] = (struct process_utilization){
                (unsigned)sample->pid, (unsigned long long)sample->at_us,
                (unsigned)sample->sm, (unsigned)sample->memory, 0, 0};
        found++;
    }
    *count = found;
    code = SUCCESS;
    if (device->mig_mode)
        code = NOT_SUPPORTED;
    else if (found == 0)
        code = device->process_util_empty ? SUCCESS : NOT_FOUND;
    else if (found > room)
        code = INSUFFICIENT_SIZE;
    done();
    return code;
}
