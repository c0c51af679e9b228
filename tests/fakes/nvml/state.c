/* Reads the state file, turns utilization into samples as time passes, and meets the faults.
 *
 * One statement a line, words parted by one space; text values are the rest of the line:
 *
 *     system count 2                          devices 0 and 1
 *     system driver_version 550.90.07
 *     0 uuid GPU-1234
 *     0 utilization 75                        from now on; it fills the sample buffer
 *     0 samples 1700000000000000:30 …         the buffer itself, in place of time (µs:value)
 *     0 field 138 3 1024 0                    a field value: number[:scope], type, value, nvmlReturn_t
 *     0 gpm 2 45.5                            a GPM metric; 2@7 is the one of GPU instance 7
 *     0 mig_mode 1
 *     0 mig 3 MIG-1234 7 0 1 1 10468982784 0 NVIDIA H100 MIG 1g.10gb
 *                                             place, uuid, GPU and compute instance, their slices,
 *                                             memory total and used, name
 *     0 process 4711 1048576 7 0              pid, memory (-1: not told), GPU and compute instance
 *     0 mps_process 4712 1048576 -1 -1
 *     0 process_sample 4711 1700000000000000 30 10
 *                                             pid, µs, SM and memory per cent
 *     0 xid 79                                announced to who subscribed before the file said so
 *     0 return nvmlDeviceGetPowerUsage 15     an nvmlReturn_t
 *     * return nvmlInitWithFlags 9            `*`: the system, or every device
 *     0 delay_ms nvmlDeviceGetPowerUsage 200
 *     0 hang nvmlDeviceGetPowerUsage 1        until a later file has no such line
 *
 * What a file does not say is what a healthy board says. The path is in GPUSCALE_FAKE_NVML_STATE,
 * looked up at every call; a test must replace the file as a whole (rename), never write in it.
 */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 16384, HANG_POLL_US = 2000 };

struct state state;
pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;

static struct stat seen; /* the file that `state` was read from, */
static char seen_path[4096]; /* and where it was: another path is another machine */

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void ring_put(struct ring *ring, uint64_t at_us, int64_t value) {
    ring->samples[ring->written % RING_MAX] = (struct sample){at_us, value};
    ring->written++;
}

/* Time up to `to_us` becomes samples of the utilization that held until then. */
static void ring_advance(struct device *device, enum buffer buffer, uint64_t to_us) {
    struct ring *ring = &device->rings[buffer];
    uint64_t period_us = device->sample_period_us > 0 ? (uint64_t)device->sample_period_us : 1;
    if (ring->explicit_)
        return;
    if (ring->last_us == 0)
        ring->last_us = to_us - period_us;
    /* A long silence needs no more samples than the ring can hold. */
    if (to_us > ring->last_us + RING_MAX * period_us)
        ring->last_us = to_us - RING_MAX * period_us;
    while (ring->last_us + period_us <= to_us) {
        ring->last_us += period_us;
        ring_put(ring, ring->last_us, device->utilization[buffer]);
    }
}

static void rings_advance(uint64_t to_us) {
    for (int i = 0; i < state.count && i < DEVICES_MAX; i++)
        for (int buffer = 0; buffer < BUFFERS; buffer++)
            ring_advance(&state.devices[i], (enum buffer)buffer, to_us);
}

static void device_telemetry_defaults(struct device *device);

static void device_defaults(struct device *device, int index) {
    snprintf(device->uuid, sizeof device->uuid, "GPU-00000000-0000-0000-0000-%012d", index);
    snprintf(device->name, sizeof device->name, "NVIDIA H100 80GB HBM3");
    snprintf(device->bus_id, sizeof device->bus_id, "00000000:%02X:00.0", index + 1);
    device->minor = index;
    device->memory_total = 81559ll << 20;
    device->memory_reserved = 551ll << 20;
    device->memory_used = 0;
    device->memory_free = -1; /* what the others leave */
    device->power_mw = 72000;
    device->power_limit_mw = 700000;
    device->energy_mj = 1000000;
    device->temperature = 34;
    device->memory_temperature = 41;
    device->memory_temperature_return = 0;
    device->utilization[BUFFER_GPU] = device->utilization[BUFFER_MEMORY] = 0;
    device->sample_period_us = 20000;
    device->sample_value_type = 1; /* unsigned int */
    device->lost = 0;
    device_telemetry_defaults(device);
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        device->rings[buffer].explicit_ = 0;
}

static void field_put(struct device *device, struct field field) {
    for (int i = 0; i < device->fields_count; i++)
        if (device->fields[i].id == field.id && device->fields[i].scope == field.scope) {
            device->fields[i] = field;
            return;
        }
    if (device->fields_count < FIELDS_MAX)
        device->fields[device->fields_count++] = field;
}

static void gpm_put(struct device *device, struct gpm_metric metric) {
    for (int i = 0; i < device->gpm_count; i++)
        if (device->gpm[i].id == metric.id && device->gpm[i].gpu_instance == metric.gpu_instance) {
            device->gpm[i] = metric;
            return;
        }
    if (device->gpm_count < GPM_MAX)
        device->gpm[device->gpm_count++] = metric;
}

static void device_telemetry_defaults(struct device *device) {
    static const int64_t counters[] = {3, 4, 5, 6, 74, 75, 76, 77, 78, 79, 269, 270, 271};
    static const int64_t clocks[CLOCKS] = {1980, 1980, 2619, 1545};
    static const double gpm[][2] = {
        {1, 0}, {2, 0}, {3, 0}, {5, 0}, {10, 0}, {11, 0}, {12, 0}, {13, 0}, {20, 0}, {21, 0},
        {60, 0}, {61, 0},
    };
    device->fields_count = device->gpm_count = device->processes_count = 0;
    device->process_samples_count = device->xids_count = 0;
    memset(device->migs, 0, sizeof device->migs);
    memcpy(device->clocks, clocks, sizeof clocks);
    memset(device->remapped, 0, sizeof device->remapped);
    device->fans = device->encoder = device->decoder = device->reasons = 0;
    device->pcie_replays = device->license_supported = device->licensed = 0;
    device->mig_mode = device->process_util_empty = 0;
    device->ecc_mode = device->gpm_supported = device->mig_capable = device->events = 1;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        field_put(device, (struct field){counters[i], -1, 3, 0, 0});
    field_put(device, (struct field){138, 0xFFFFFFFFll, 3, 0, 0});
    field_put(device, (struct field){139, 0xFFFFFFFFll, 3, 0, 0});
    field_put(device, (struct field){197, -1, 3, 0, 0});
    field_put(device, (struct field){198, -1, 3, 0, 0});
    for (size_t i = 0; i < sizeof gpm / sizeof *gpm; i++)
        gpm_put(device, (struct gpm_metric){(int64_t)gpm[i][0], -1, gpm[i][1]});
}

static void system_defaults(void) {
    state.count = 1;
    state.cuda_version = 12040;
    state.faults_count = 0;
    snprintf(state.driver_version, sizeof state.driver_version, "550.90.07");
    snprintf(state.nvml_version, sizeof state.nvml_version, "12.550.90.07");
}

static void complain(const char *line) {
    fprintf(stderr, "fake nvml: this line of the state file means nothing: %s\n", line);
    abort(); /* a test with a slip of the pen must not pass */
}

/* Negative numbers and the driver's blank values, which fill all 64 bits, come through alike. */
static int64_t number(const char *text) {
    return (int64_t)strtoull(text, NULL, 0);
}

static void text_into(char *field, size_t size, const char *value) {
    snprintf(field, size, "%s", value);
}

static void read_samples(struct ring *ring, char *value) {
    char *rest = NULL;
    memset(ring, 0, sizeof *ring);
    ring->explicit_ = 1;
    for (char *word = strtok_r(value, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(word, ':');
        if (colon == NULL)
            complain(word);
        ring_put(ring, strtoull(word, NULL, 10), number(colon + 1));
    }
}

static int read_device_number(struct device *device, const char *key, int64_t value) {
    const struct { const char *key; int64_t *field; } numbers[] = {
        {"minor", &device->minor},
        {"memory_total", &device->memory_total},
        {"memory_reserved", &device->memory_reserved},
        {"memory_used", &device->memory_used},
        {"memory_free", &device->memory_free},
        {"power_mw", &device->power_mw},
        {"power_limit_mw", &device->power_limit_mw},
        {"energy_mj", &device->energy_mj},
        {"temperature", &device->temperature},
        {"memory_temperature", &device->memory_temperature},
        {"memory_temperature_return", &device->memory_temperature_return},
        {"utilization", &device->utilization[BUFFER_GPU]},
        {"memory_utilization", &device->utilization[BUFFER_MEMORY]},
        {"sample_period_us", &device->sample_period_us},
        {"sample_value_type", &device->sample_value_type},
        {"lost", &device->lost},
        {"clock_graphics", &device->clocks[0]},
        {"clock_sm", &device->clocks[1]},
        {"clock_memory", &device->clocks[2]},
        {"clock_video", &device->clocks[3]},
        {"fans", &device->fans},
        {"fan_speed", &device->fan_speed[0]},
        {"encoder", &device->encoder},
        {"decoder", &device->decoder},
        {"reasons", &device->reasons},
        {"pcie_replays", &device->pcie_replays},
        {"ecc_mode", &device->ecc_mode},
        {"rows_correctable", &device->remapped[0]},
        {"rows_uncorrectable", &device->remapped[1]},
        {"rows_pending", &device->remapped[2]},
        {"rows_failed", &device->remapped[3]},
        {"license_supported", &device->license_supported},
        {"licensed", &device->licensed},
        {"gpm_supported", &device->gpm_supported},
        {"mig_capable", &device->mig_capable},
        {"mig_mode", &device->mig_mode},
        {"events", &device->events},
        {"process_util_empty", &device->process_util_empty},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(numbers[i].key, key) == 0) {
            *numbers[i].field = value;
            return 1;
        }
    return 0;
}

/* Numbers parted by spaces; what follows them, if anything. */
static char *read_numbers(char *value, int64_t *numbers, int count, const char *line) {
    for (int i = 0; i < count; i++) {
        char *end = NULL;
        numbers[i] = number(value);
        strtoull(value, &end, 0);
        if (end == value)
            complain(line);
        value = *end == ' ' ? end + 1 : end;
    }
    return value;
}

static void read_field(struct device *device, const char *line, char *value) {
    int64_t n[3], scope = -1;
    char *space = strchr(value, ' '), *colon = strchr(value, ':');
    if (space == NULL)
        complain(line);
    if (colon != NULL && colon < space)
        scope = number(colon + 1);
    read_numbers(space + 1, n, 3, line);
    field_put(device, (struct field){number(value), scope, n[0], n[1], n[2]});
}

static void read_gpm(struct device *device, const char *line, char *value) {
    char *space = strchr(value, ' '), *at = strchr(value, '@');
    if (space == NULL)
        complain(line);
    gpm_put(device, (struct gpm_metric){number(value), at ? number(at + 1) : -1,
                                        strtod(space + 1, NULL)});
}

static void read_mig(struct device *device, const char *line, char *value) {
    int64_t place = number(value), n[6];
    char *uuid = strchr(value, ' '), *rest = uuid ? strchr(uuid + 1, ' ') : NULL;
    struct mig *mig = &device->migs[place >= 0 && place < MIGS_MAX ? place : 0];
    if (rest == NULL || place < 0 || place >= MIGS_MAX)
        complain(line);
    *rest = '\0';
    text_into(mig->uuid, sizeof mig->uuid, uuid + 1);
    text_into(mig->name, sizeof mig->name, read_numbers(rest + 1, n, 6, line));
    mig->gpu_instance = n[0];
    mig->compute_instance = n[1];
    mig->slices = n[2];
    mig->compute_slices = n[3];
    mig->memory_total = n[4];
    mig->memory_used = n[5];
}

static int read_list(struct device *device, const char *line, const char *key, char *value) {
    int64_t n[4];
    int mps = strcmp(key, "mps_process") == 0;
    if (strcmp(key, "field") == 0)
        read_field(device, line, value);
    else if (strcmp(key, "gpm") == 0)
        read_gpm(device, line, value);
    else if (strcmp(key, "mig") == 0)
        read_mig(device, line, value);
    else if ((mps || strcmp(key, "process") == 0) && device->processes_count < PROCESSES_MAX) {
        read_numbers(value, n, 4, line);
        device->processes[device->processes_count++] =
            (struct process){n[0], n[1], n[2], n[3], mps};
    } else if (strcmp(key, "process_sample") == 0 &&
               device->process_samples_count < PROCESSES_MAX) {
        read_numbers(value, n, 4, line);
        device->process_samples[device->process_samples_count++] =
            (struct process_sample){n[0], n[1], n[2], n[3]};
    } else if (strcmp(key, "xid") == 0 && device->xids_count < XIDS_MAX)
        device->xids[device->xids_count++] = number(value);
    else
        return 0;
    return 1;
}

static void read_device(struct device *device, const char *line, const char *key, char *value) {
    if (strcmp(key, "uuid") == 0)
        text_into(device->uuid, sizeof device->uuid, value);
    else if (strcmp(key, "name") == 0)
        text_into(device->name, sizeof device->name, value);
    else if (strcmp(key, "bus_id") == 0)
        text_into(device->bus_id, sizeof device->bus_id, value);
    else if (strcmp(key, "samples") == 0)
        read_samples(&device->rings[BUFFER_GPU], value);
    else if (strcmp(key, "memory_samples") == 0)
        read_samples(&device->rings[BUFFER_MEMORY], value);
    else if (!read_list(device, line, key, value) &&
             !read_device_number(device, key, number(value)))
        complain(line);
}

static void read_system(const char *line, const char *key, const char *value) {
    if (strcmp(key, "count") == 0)
        state.count = number(value);
    else if (strcmp(key, "driver_version") == 0)
        text_into(state.driver_version, sizeof state.driver_version, value);
    else if (strcmp(key, "nvml_version") == 0)
        text_into(state.nvml_version, sizeof state.nvml_version, value);
    else if (strcmp(key, "cuda_version") == 0)
        state.cuda_version = number(value);
    else
        complain(line);
}

static int read_fault(int device, const char *key, char *value) {
    char *space = strchr(value, ' ');
    struct fault *fault;
    int value_of;
    if (strcmp(key, "return") != 0 && strcmp(key, "delay_ms") != 0 && strcmp(key, "hang") != 0)
        return 0;
    if (space == NULL || state.faults_count >= FAULTS_MAX)
        complain(value);
    *space = '\0';
    value_of = atoi(space + 1);
    fault = &state.faults[state.faults_count++];
    memset(fault, 0, sizeof *fault);
    fault->device = device;
    snprintf(fault->function, sizeof fault->function, "%s", value);
    if (strcmp(key, "return") == 0)
        fault->code = value_of;
    else if (strcmp(key, "delay_ms") == 0)
        fault->delay_ms = value_of;
    else
        fault->hang = value_of;
    return 1;
}

static void read_line(char *line) {
    char whole[256], *key, *value, *rest = NULL, *subject;
    int index;
    snprintf(whole, sizeof whole, "%.200s", line);
    subject = strtok_r(line, " ", &rest);
    key = strtok_r(NULL, " ", &rest);
    value = rest; /* may be empty: a driver may well answer an empty name */
    if (subject == NULL)
        return;
    if (key == NULL || value == NULL)
        complain(whole);
    if (strcmp(subject, "system") == 0) {
        read_system(whole, key, value);
        return;
    }
    index = strcmp(subject, "*") == 0 ? EVERY_DEVICE : atoi(subject);
    if (index >= DEVICES_MAX || read_fault(index, key, value))
        return;
    if (index < 0)
        complain(whole);
    read_device(&state.devices[index], whole, key, value);
}

void state_refresh(void) {
    static char line[LINE_MAX_BYTES];
    const char *path = getenv("GPUSCALE_FAKE_NVML_STATE");
    struct stat now;
    FILE *file;
    if (path == NULL || stat(path, &now) != 0) {
        state.loaded = 0;
        return;
    }
    if (strcmp(path, seen_path) != 0) {
        snprintf(seen_path, sizeof seen_path, "%s", path);
        state.loaded = 0;
    }
    if (!state.loaded || now.st_ino != seen.st_ino || now.st_size != seen.st_size ||
        now.st_mtim.tv_sec != seen.st_mtim.tv_sec || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec) {
        /* Until the file was replaced the old utilization held. */
        uint64_t changed_us =
            (uint64_t)now.st_mtim.tv_sec * 1000000u + (uint64_t)now.st_mtim.tv_nsec / 1000u;
        int first = !state.loaded;
        file = fopen(path, "r");
        if (file == NULL)
            return;
        if (first)
            memset(&state, 0, sizeof state);
        else
            rings_advance(changed_us);
        system_defaults();
        for (int i = 0; i < DEVICES_MAX; i++)
            device_defaults(&state.devices[i], i);
        while (fgets(line, sizeof line, file) != NULL) {
            line[strcspn(line, "\n")] = '\0';
            read_line(line);
        }
        fclose(file);
        seen = now;
        state.loaded = 1;
    }
    rings_advance(now_us());
}

unsigned state_samples(struct device *device, enum buffer buffer, uint64_t since_us,
                       struct sample *out, unsigned room) {
    struct ring *ring = &device->rings[buffer];
    uint64_t first = ring->written > RING_MAX ? ring->written - RING_MAX : 0;
    unsigned found = 0;
    for (uint64_t i = first; i < ring->written && found < room; i++)
        if (ring->samples[i % RING_MAX].at_us > since_us)
            out[found++] = ring->samples[i % RING_MAX];
    return found;
}

static struct fault faults_of(const char *function, int device) {
    struct fault all = {.device = device};
    pthread_mutex_lock(&state_lock);
    state_refresh();
    for (int i = 0; i < state.faults_count; i++) {
        const struct fault *fault = &state.faults[i];
        if (strcmp(fault->function, function) != 0 && strcmp(fault->function, "*") != 0)
            continue;
        if (fault->device != device && fault->device != EVERY_DEVICE)
            continue;
        all.code = fault->code ? fault->code : all.code;
        all.delay_ms += fault->delay_ms;
        all.hang |= fault->hang;
    }
    pthread_mutex_unlock(&state_lock);
    return all;
}

int state_fault(const char *function, int device) {
    struct fault fault = faults_of(function, device);
    if (fault.delay_ms > 0)
        usleep((useconds_t)fault.delay_ms * 1000u);
    while (fault.hang) {
        usleep(HANG_POLL_US);
        fault = faults_of(function, device);
    }
    return fault.code;
}
