/* What the fake knows of each GPU model: the MIG profiles and where they fit. */
#ifndef FAKENVML_GPU_MODELS_H
#define FAKENVML_GPU_MODELS_H

#include <stdint.h>

enum engine { COPY_ENGINE, DECODER, ENCODER, JPEG, OFA, ENGINE_KINDS };

typedef struct {
    const char *name;
    uint8_t constant;      /* NVML_GPU_INSTANCE_PROFILE_* */
    uint8_t id;            /* nvmlGpuInstanceProfileInfo.id, what nvidia-smi -cgi takes */
    uint8_t slices;        /* compute slices */
    uint8_t size;          /* memory slices */
    uint8_t max_instances; /* on an empty GPU */
    uint16_t sm_count;
    uint32_t memory_mib;
    int8_t engines[ENGINE_KINDS]; /* -1: not known */
    uint8_t start_count;
    uint8_t starts[8];
} gi_profile_t;

typedef struct {
    const char *key, *name;
    uint8_t architecture, capability_major, capability_minor;
    uint32_t memory_mib;
    uint16_t pci_device;
    uint16_t sm_count;
    uint8_t slices, memory_slices, max_instances; /* 0, 0, 0: no MIG */
    uint8_t needs_reset;                          /* mode change takes a GPU reset */
    uint8_t mode_persists;                        /* mode survives a reboot */
    uint8_t profile_count;
    const gi_profile_t *profiles;
} gpu_model_t;

unsigned int gpu_model_count(void);
const gpu_model_t *gpu_model(unsigned int index);

/* Index of the first model whose key starts with `key`, any case; -1 if none. */
int gpu_model_find(const char *key);

/* Index of a profile in `model`; -1 if the GPU does not have it. */
int gi_profile_by_id(const gpu_model_t *model, unsigned int id);
int gi_profile_by_constant(const gpu_model_t *model, unsigned int constant);

#endif
