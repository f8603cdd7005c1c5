#include "gpu_models.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "gpu_tables.inc"

unsigned int gpu_model_count(void)
{
    return sizeof(models) / sizeof(models[0]);
}

const gpu_model_t *gpu_model(unsigned int index)
{
    return &models[index];
}

int gpu_model_find(const char *key)
{
    for (unsigned int i = 0; i < gpu_model_count(); i++)
        if (*key && !strncasecmp(models[i].key, key, strlen(key)))
            return (int)i;
    return -1;
}

int gi_profile_by_id(const gpu_model_t *model, unsigned int id)
{
    for (int i = 0; i < model->profile_count; i++)
        if (model->profiles[i].id == id)
            return i;
    return -1;
}

int gi_profile_by_constant(const gpu_model_t *model, unsigned int constant)
{
    for (int i = 0; i < model->profile_count; i++)
        if (model->profiles[i].constant == constant)
            return i;
    return -1;
}
