/* Library life cycle, versions, error texts. */
#include <stdio.h>
#include <string.h>

#include "call.h"

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
EXPORT nvmlReturn_t nvmlInit_v2(void);
EXPORT nvmlReturn_t nvmlInit(void);
EXPORT nvmlReturn_t nvmlShutdown(void);
EXPORT const char *nvmlErrorString(nvmlReturn_t code);
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);

static nvmlReturn_t initialise(void)
{
    initialized_add(1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    CALL(STATE_READ, NULL, initialise());
}

nvmlReturn_t nvmlInit_v2(void)
{
    CALL(STATE_READ, NULL, initialise());
}

nvmlReturn_t nvmlInit(void)
{
    CALL(STATE_READ, NULL, initialise());
}

nvmlReturn_t nvmlShutdown(void)
{
    if (initialized_add(-1) >= 0)
        return NVML_SUCCESS;
    initialized_add(1);
    return NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "Not ready", "GPU not found", "Invalid state", "Reset type not supported",
    };
    if (code < 0 || code >= (int)(sizeof(texts) / sizeof(texts[0])))
        return "Unknown Error";
    return texts[code];
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL(STATE_READ, NULL, copy_text(version, length, call.state->driver));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    CALL(STATE_READ, NULL, copy_text(version, length, "13.615.71"));
}

static nvmlReturn_t cuda_version(int *version)
{
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    CALL(STATE_READ, NULL, cuda_version(version));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    CALL(STATE_READ, NULL, cuda_version(version));
}

static nvmlReturn_t process_name(unsigned int pid, char *name, unsigned int length)
{
    char path[64], text[256];

    snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    bool read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    text[strcspn(text, "\n")] = '\0';
    return read ? copy_text(name, length, text) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    CALL(STATE_READ, NULL, process_name(pid, name, length));
}
