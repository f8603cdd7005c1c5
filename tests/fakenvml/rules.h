/* The behaviour of a MIG GPU: what may be created, destroyed and switched.
 *
 * All functions work on a locked state and return NVML codes.  Nothing here
 * knows of handles, faults or files. */
#ifndef FAKENVML_RULES_H
#define FAKENVML_RULES_H

#include "gpu_models.h"
#include "nvml_abi.h"
#include "state.h"

#define NO_PLACEMENT NULL

const gpu_model_t *model_of(const gpu_t *gpu);
const gi_profile_t *profile_of(const gpu_t *gpu, const gi_t *gi);
bool mig_enabled(const gpu_t *gpu);

/* `Clients` keep a GPU or an instance busy: processes that still run. */
bool process_alive(const process_t *process);
bool gpu_busy(const node_state_t *state, int gpu);
bool ci_busy(const node_state_t *state, int gpu, int gi, int ci);

/* Compute instances in a GPU instance, instances on a GPU. */
unsigned int ci_count(const gi_t *gi);
unsigned int gi_count(const gpu_t *gpu);

/* Mode.  `activation` is what nvmlDeviceSetMigMode stores beside its return code. */
nvmlReturn_t set_mig_mode(node_state_t *state, int gpu, unsigned int mode, nvmlReturn_t *activation);
nvmlReturn_t reset_gpu(node_state_t *state, int gpu);
void reboot_node(node_state_t *state);

/* GPU instances.  `profile` is an index in the model's profiles. */
unsigned int gi_remaining(const gpu_t *gpu, int profile);
nvmlReturn_t create_gi(node_state_t *state, int gpu, int profile, const nvmlPlacement_t *placement, int *gi_id);
nvmlReturn_t destroy_gi(node_state_t *state, int gpu, int gi_id);

/* Compute instances.  `profile` is a compute instance profile id. */
typedef struct {
    unsigned int id, slices, max_instances;
} ci_profile_t;

/* Fills `profile`; false if a GI of this profile has no such CI profile. */
bool ci_profile(const gi_profile_t *gi_profile, unsigned int id, ci_profile_t *profile);
unsigned int ci_placements(const gi_profile_t *gi_profile, const ci_profile_t *profile, nvmlPlacement_t *out);
unsigned int ci_remaining(const gpu_t *gpu, const gi_t *gi, const ci_profile_t *profile);
nvmlReturn_t create_ci(node_state_t *state, int gpu, int gi_id, unsigned int profile,
                       const nvmlPlacement_t *placement, int *ci_id);
nvmlReturn_t destroy_ci(node_state_t *state, int gpu, int gi_id, int ci_id);

/* SM count of a compute instance. */
unsigned int ci_sm_count(const gi_profile_t *gi_profile, unsigned int slices);

/* The UUID of instance (gi, ci) of a GPU; ci = gi = -1 for the GPU itself. */
void make_uuid(char *uuid, const char *prefix, const char *seed, int gi, int ci, uint32_t nonce);

#endif
