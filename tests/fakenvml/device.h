/* Device handles: a GPU or a MIG device. */
#ifndef FAKENVML_DEVICE_H
#define FAKENVML_DEVICE_H

#include "call.h"
#include "rules.h"

/* A device that was asked about; `gi` and `ci` are NULL for a whole GPU. */
typedef struct {
    handle_t at;
    gpu_t *gpu;
    gi_t *gi;
    ci_t *ci;
} device_t;

/* Either kind; false: INVALID_ARGUMENT. */
bool device_open(node_state_t *state, nvmlDevice_t handle, device_t *device);

/* A whole GPU, or NULL. */
gpu_t *gpu_open(node_state_t *state, nvmlDevice_t handle, int *index);

/* Memory a device's processes use, and has. */
uint64_t memory_used_mib(const node_state_t *state, const device_t *device);
uint64_t memory_total_mib(const device_t *device);

/* What a process must match to count as the device's. */
bool process_on(const process_t *process, const device_t *device);

/* "NVIDIA A100 80GB PCIe", with " MIG 1g.10gb" on a MIG device. */
void device_name(const device_t *device, char *name, size_t size);

/* "1g.10gb", or "1c.3g.40gb" where the compute instance is part of its GPU instance. */
void mig_name(const gi_profile_t *profile, unsigned int ci_slices, char *name, size_t size);

#endif
