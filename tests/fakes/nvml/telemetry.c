/* Clocks, fans, video engines, faults of the memory and the values that come by number. */
#include "calls.h"

#include <stddef.h>
#include <string.h>

enum { FIELD_MEMORY_TEMPERATURE = 82, FIELD_TOTAL_ENERGY = 83 };
enum { LICENSE_TEXT = 128, FEATURES_MAX = 3, FEATURE_VGPU = 2 };

struct license_expiry {
    uint32_t year;
    uint16_t month, day, hour, min, sec;
    uint8_t status;
};
struct licensable_feature {
    unsigned code, state;
    char info[LICENSE_TEXT], product[LICENSE_TEXT];
    unsigned enabled;
    struct license_expiry expiry;
};
struct licensable_features {
    int supported;
    unsigned count;
    struct licensable_feature features[FEATURES_MAX];
};

unsigned fake_nvml_telemetry_layout(unsigned *sizes, unsigned room) {
    const unsigned all[] = {sizeof(struct licensable_features)};
    unsigned count = sizeof all / sizeof *all;
    memcpy(sizes, all, sizeof *all * (count < room ? count : room));
    return count;
}

nvml_return nvmlDeviceGetClockInfo(nvml_device device, unsigned domain, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    if (domain < CLOCKS)
        *out = (unsigned)device->clocks[domain];
    done();
    return domain < CLOCKS ? SUCCESS : INVALID_ARGUMENT;
}

nvml_return nvmlDeviceGetNumFans(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->fans;
    done();
    return *out ? SUCCESS : NOT_SUPPORTED;
}

nvml_return nvmlDeviceGetFanSpeed_v2(nvml_device device, unsigned fan, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->fan_speed[0];
    code = fan < (unsigned)device->fans ? SUCCESS : INVALID_ARGUMENT;
    done();
    return code;
}

nvml_return nvmlDeviceGetEncoderUtilization(nvml_device device, unsigned *out, unsigned *window_us) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->encoder;
    *window_us = 166667;
    return done();
}

nvml_return nvmlDeviceGetDecoderUtilization(nvml_device device, unsigned *out, unsigned *window_us) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->decoder;
    *window_us = 166667;
    return done();
}

nvml_return nvmlDeviceGetCurrentClocksEventReasons(nvml_device device, unsigned long long *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned long long)device->reasons;
    return done();
}

nvml_return nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device device, unsigned long long *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned long long)device->reasons;
    return done();
}

nvml_return nvmlDeviceGetPcieReplayCounter(nvml_device device, unsigned *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *out = (unsigned)device->pcie_replays;
    return done();
}

nvml_return nvmlDeviceGetEccMode(nvml_device device, unsigned *current, unsigned *pending) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *current = *pending = (unsigned)device->ecc_mode;
    done();
    return device->ecc_mode < 0 ? NOT_SUPPORTED : SUCCESS;
}

nvml_return nvmlDeviceGetRemappedRows(nvml_device device, unsigned *correctable,
                                      unsigned *uncorrectable, unsigned *pending,
                                      unsigned *failed) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    *correctable = (unsigned)device->remapped[0];
    *uncorrectable = (unsigned)device->remapped[1];
    *pending = (unsigned)device->remapped[2];
    *failed = (unsigned)device->remapped[3];
    code = device->mig_mode ? NOT_SUPPORTED : SUCCESS;
    done();
    return code;
}

nvml_return nvmlDeviceGetGridLicensableFeatures_v4(nvml_device device,
                                                   struct licensable_features *out) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    memset(out, 0, sizeof *out);
    out->supported = device->license_supported != 0;
    out->count = device->license_supported ? 1 : 0;
    out->features[0].code = FEATURE_VGPU;
    out->features[0].state = (unsigned)device->licensed;
    return done();
}

/* A value in the member that `type` (nvmlValueType_t) names. */
union value typed(int64_t number, int64_t type) {
    union value value = {0};
    switch (type) {
    case 0: value.d = (double)number; break;
    case 2: value.ul = (unsigned long)number; break;
    case 3: value.ull = (unsigned long long)number; break;
    case 4: value.sll = number; break;
    case 5: value.si = (int)number; break;
    case 6: value.us = (unsigned short)number; break;
    default: value.ui = (unsigned)number; break;
    }
    return value;
}

static void field_answer(struct device *device, struct field_value *value) {
    value->result = NOT_SUPPORTED;
    for (int i = 0; i < device->fields_count; i++) {
        const struct field *field = &device->fields[i];
        if (field->id != value->field || (field->scope != -1 && field->scope != value->scope))
            continue;
        value->result = (nvml_return)field->result;
        value->value_type = (unsigned)field->type;
        value->value = typed(field->value, field->type);
    }
}

nvml_return nvmlDeviceGetFieldValues(nvml_device device, int count, struct field_value *values) {
    nvml_return code = device_call(__func__, device);
    if (code != SUCCESS)
        return code;
    for (int i = 0; i < count; i++) {
        struct field_value *value = &values[i];
        if (value->field == FIELD_MEMORY_TEMPERATURE) {
            /* Drivers of the 545 series say double here and fill the integer. */
            value->result = (nvml_return)device->memory_temperature_return;
            value->value_type = 0;
            value->value.ui = (unsigned)device->memory_temperature;
        } else if (value->field == FIELD_TOTAL_ENERGY) {
            value->result = SUCCESS;
            value->value_type = 3;
            value->value.ull = (unsigned long long)device->energy_mj;
        } else
            field_answer(device, value);
    }
    return done();
}
