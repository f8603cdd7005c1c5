/* uses and times: what the node's two logs say, as JSON. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

static FILE *open_log(const char *suffix)
{
    char path[512];
    state_path(path, sizeof(path), suffix);
    FILE *file = fopen(path, "re");
    if (!file)
        die("%s: %s", path, strerror(errno));
    return file;
}

/* One object a line of the log: who opened, closed or collided on which instance. */
void verb_uses(words_t *words)
{
    char what[16], job[JOB_NAME_SIZE], uuid[UUID_SIZE];
    double at;
    int pid, gpu, gi, ci;
    unsigned int uid, serial;
    const char *separator = "";

    expect_no_more(words);
    FILE *file = open_log("uses");
    printf("[");
    while (fscanf(file, "%lf %15s %d %u %31s %d %d %d %u %47s", &at, what, &pid, &uid, job, &gpu, &gi, &ci, &serial,
                  uuid) == 10) {
        printf("%s{\"time_s\":%.6f,\"event\":\"%s\",\"pid\":%d,\"uid\":%u,\"job\":\"%s\",\"gpu\":%d,\"gi\":%d,"
               "\"ci\":%d,\"serial\":%u,\"uuid\":\"%s\"}",
               separator, at, what, pid, uid, strcmp(job, "-") ? job : "", gpu, gi, ci, serial, uuid);
        separator = ",\n";
    }
    printf("]\n");
    fclose(file);
}

typedef struct {
    int pid;
    unsigned int calls;
    unsigned long long us;
} total_t;

static total_t *total_of(total_t **totals, size_t *count, int pid)
{
    for (size_t i = *count; i-- > 0;)
        if ((*totals)[i].pid == pid)
            return &(*totals)[i];
    *totals = realloc(*totals, (*count + 1) * sizeof(**totals));
    if (!*totals)
        die("out of memory");
    (*totals)[*count] = (total_t){ .pid = pid };
    return &(*totals)[(*count)++];
}

/* Seconds each process spent inside NVML calls. */
void verb_times(words_t *words)
{
    char name[CALL_NAME_SIZE];
    double at;
    int pid, gpu, rc;
    unsigned int uid;
    unsigned long long us;
    total_t *totals = NULL;
    size_t count = 0;

    expect_no_more(words);
    FILE *file = open_log("calls");
    while (fscanf(file, "%lf %d %u %63s %d %d %llu", &at, &pid, &uid, name, &gpu, &rc, &us) == 7) {
        total_t *total = total_of(&totals, &count, pid);
        total->calls++;
        total->us += us;
    }
    fclose(file);
    printf("[");
    for (size_t i = 0; i < count; i++)
        printf("%s{\"pid\":%d,\"calls\":%u,\"seconds\":%.6f}", i ? ",\n" : "", totals[i].pid, totals[i].calls,
               (double)totals[i].us * 1e-6);
    printf("]\n");
    free(totals);
}
