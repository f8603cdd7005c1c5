/* Processes, and the utilisation that a MIG GPU does not tell. */
#include "device.h"

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v1_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v2_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_v2_t *infos);
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list);
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates);
EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *rate, unsigned int *period);
EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *rate, unsigned int *period);
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples, unsigned int *count,
                                                    unsigned long long since);
EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, void *info);
EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *mode);
EXPORT nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, unsigned int mode);
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power_mw);

static unsigned int count_processes(const node_state_t *state, const device_t *device)
{
    unsigned int count = 0;
    for (int i = 0; i < MAX_PROCESSES; i++)
        count += process_on(&state->processes[i], device);
    return count;
}

static unsigned int id_or_none(int id)
{
    return id < 0 ? NVML_NO_INSTANCE : (unsigned int)id;
}

/* `width` is the entry size of the interface's version: the old one has no instance ids. */
static nvmlReturn_t processes(node_state_t *state, nvmlDevice_t handle, unsigned int *count, void *infos,
                              size_t width)
{
    device_t device;
    unsigned char *out = infos;

    if (!count || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int room = infos ? *count : 0;
    *count = count_processes(state, &device);
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; *count && i < MAX_PROCESSES; i++) {
        const process_t *process = &state->processes[i];
        if (!process_on(process, &device))
            continue;
        *(nvmlProcessInfo_v1_t *)out = (nvmlProcessInfo_v1_t){ (unsigned int)process->pid, process->memory_mib << 20 };
        if (width == sizeof(nvmlProcessInfo_v2_t)) {
            ((nvmlProcessInfo_v2_t *)out)->gpuInstanceId = id_or_none(process->gi);
            ((nvmlProcessInfo_v2_t *)out)->computeInstanceId = id_or_none(process->ci);
        }
        out += width;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos)
{
    CALL(STATE_READ, device, processes(call.state, device, count, infos, sizeof(*infos)));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    CALL(STATE_READ, device, processes(call.state, device, count, infos, sizeof(*infos)));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
    CALL(STATE_READ, device, processes(call.state, device, count, infos, sizeof(*infos)));
}

static nvmlReturn_t no_processes(node_state_t *state, nvmlDevice_t handle, unsigned int *count)
{
    device_t device;
    if (!count || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    CALL(STATE_READ, device, no_processes(call.state, device, count));
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    CALL(STATE_READ, device, no_processes(call.state, device, count));
}

static nvmlReturn_t details(node_state_t *state, nvmlDevice_t handle, nvmlProcessDetailList_t *list)
{
    device_t device;
    if (!list || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != 0x1000018)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned int room = list->procArray ? list->numProcArrayEntries : 0;
    bool compute = list->mode == 0 || list->mode == 3;
    list->numProcArrayEntries = compute ? count_processes(state, &device) : 0;
    if (list->numProcArrayEntries > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0, at = 0; at < list->numProcArrayEntries; i++) {
        const process_t *process = &state->processes[i];
        if (process_on(process, &device))
            list->procArray[at++] = (nvmlProcessDetail_t){ (unsigned int)process->pid, process->memory_mib << 20,
                                                           id_or_none(process->gi), id_or_none(process->ci), 0 };
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    CALL(STATE_READ, device, details(call.state, device, list));
}

/* Utilisation exists on GPUs that are not in MIG mode, and nowhere else. */
static nvmlReturn_t whole_gpu(node_state_t *state, nvmlDevice_t handle, const void *out, device_t *device)
{
    if (!out || !device_open(state, handle, device))
        return NVML_ERROR_INVALID_ARGUMENT;
    return device->ci || mig_enabled(device->gpu) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t utilization(node_state_t *state, nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    device_t device;
    nvmlReturn_t rc = whole_gpu(state, handle, rates, &device);
    if (rc == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){ device.gpu->utilization, device.gpu->utilization / 2 };
    return rc;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    CALL(STATE_READ, device, utilization(call.state, device, rates));
}

static nvmlReturn_t idle_engine(node_state_t *state, nvmlDevice_t handle, unsigned int *rate, unsigned int *period)
{
    device_t device;
    nvmlReturn_t rc = period ? whole_gpu(state, handle, rate, &device) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        *rate = 0;
        *period = 1000000;
    }
    return rc;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *rate, unsigned int *period)
{
    CALL(STATE_READ, device, idle_engine(call.state, device, rate, period));
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *rate, unsigned int *period)
{
    CALL(STATE_READ, device, idle_engine(call.state, device, rate, period));
}

static nvmlReturn_t no_samples(node_state_t *state, nvmlDevice_t handle, const void *out)
{
    device_t device;
    nvmlReturn_t rc = whole_gpu(state, handle, out, &device);
    return rc == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : rc;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples, unsigned int *count,
                                             unsigned long long since)
{
    (void)samples;
    (void)since;
    CALL(STATE_READ, device, no_samples(call.state, device, count));
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, void *info)
{
    CALL(STATE_READ, device, no_samples(call.state, device, info));
}

static nvmlReturn_t accounting_mode(node_state_t *state, nvmlDevice_t handle, unsigned int *mode)
{
    device_t device;
    if (!mode || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *mode = 0;
    return device.ci ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *mode)
{
    CALL(STATE_READ, device, accounting_mode(call.state, device, mode));
}

nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, unsigned int mode)
{
    (void)mode;
    CALL(STATE_READ, device, NVML_ERROR_NOT_SUPPORTED);
}

/* The board's draw: idle plus what its utilisation adds.  A MIG device has no sensor. */
static nvmlReturn_t power(node_state_t *state, nvmlDevice_t handle, unsigned int *power_mw)
{
    device_t device;
    if (!power_mw || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device.ci)
        return NVML_ERROR_NOT_SUPPORTED;
    *power_mw = 50000 + device.gpu->utilization * 2500;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power_mw)
{
    CALL(STATE_READ, device, power(call.state, device, power_mw));
}
