/* MIG: places of instances, many of them empty, and handles that end with their instance. */
#include "calls.h"

#include <string.h>

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    unsigned slices, compute_slices;
    unsigned long long memory_mb;
};

unsigned fake_nvml_mig_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {sizeof(struct attributes)};
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

nvml_return nvmlDeviceGetMigMode(nvml_device device, unsigned *current, unsigned *pending) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *current = *pending = (unsigned)device->mig_mode;
    code = device->mig_capable ? SUCCESS : NOT_SUPPORTED;
    done();
    return code;
}

nvml_return nvmlDeviceGetMaxMigDeviceCount(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = device->mig_capable ? MIGS_MAX : 0;
    return done();
}

nvml_return nvmlDeviceGetMigDeviceHandleByIndex(nvml_device device, unsigned place,
                                                nvml_device *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    if (place >= MIGS_MAX)
        code = INVALID_ARGUMENT;
    else if (!device->mig_mode || device->migs[place].uuid[0] == '\0')
        code = NOT_FOUND;
    else
        *out = (nvml_device)(void *)&device->migs[place];
    done();
    return code;
}

nvml_return nvmlDeviceGetGpuInstanceId(nvml_device device, unsigned *out) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    if (mig)
        *out = (unsigned)mig->gpu_instance;
    done();
    return mig ? SUCCESS : NOT_SUPPORTED;
}

nvml_return nvmlDeviceGetComputeInstanceId(nvml_device device, unsigned *out) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    if (mig)
        *out = (unsigned)mig->compute_instance;
    done();
    return mig ? SUCCESS : NOT_SUPPORTED;
}

nvml_return nvmlDeviceGetAttributes_v2(nvml_device device, struct attributes *out) {
    nvml_device gpu;
    struct mig *mig;
    nvml_return code = part_call(__func__, device, &gpu, &mig);
    if (code != SUCCESS)
        return code;
    if (mig) {
        memset(out, 0, sizeof *out);
        out->slices = (unsigned)mig->slices;
        out->compute_slices = (unsigned)mig->compute_slices;
        out->memory_mb = (unsigned long long)mig->memory_total >> 20;
    }
    done();
    return mig ? SUCCESS : NOT_SUPPORTED;
}
