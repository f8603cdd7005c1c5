#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

static const struct {
    const char *name;
    void (*run)(words_t *words);
    const char *usage;
} verbs[] = {
    { "init", verb_init,
      "--gpu MODEL:COUNT[:on|:off]... [--mig on|off] [--driver V] [--caps-root DIR] [--caps-kind device|file]" },
    { "show", verb_show, "" },
    { "policy", verb_policy, "KEY=VALUE..." },
    { "fault", verb_fault,
      "add --call NAME [--gpu N] [--skip N] [--count N] \n"
      "          [--stall S] [--fail CODE | --kill before|after | --noop | --lose]\n"
      "      fault clear" },
    { "mode", verb_mode, "--gpu N on|off" },
    { "reset", verb_reset, "--gpu N" },
    { "reboot", verb_reboot, "" },
    { "lost", verb_lost, "--gpu N [--clear]" },
    { "util", verb_util, "--gpu N PERCENT" },
    { "hold", verb_hold,
      "--gpu N [--gi N [--ci N]] | --uuid U, [--pid N] [--mem MIB] [--job ID] [--for S] [--hidden]" },
    { "unhold", verb_unhold, "--pid N | --all" },
    { "uses", verb_uses, "" },
    { "times", verb_times, "" },
};

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fake-nvml-ctl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void drop(words_t *words, int at, int count)
{
    memmove(&words->words[at], &words->words[at + count],
            sizeof(*words->words) * (size_t)(words->count - at - count));
    words->count -= count;
}

const char *take_option(words_t *words, const char *name)
{
    for (int i = 0; i + 1 < words->count; i++) {
        if (!strcmp(words->words[i], name)) {
            const char *value = words->words[i + 1];
            drop(words, i, 2);
            return value;
        }
    }
    return NULL;
}

bool take_flag(words_t *words, const char *name)
{
    for (int i = 0; i < words->count; i++) {
        if (!strcmp(words->words[i], name)) {
            drop(words, i, 1);
            return true;
        }
    }
    return false;
}

int take_number(words_t *words, const char *name, int otherwise)
{
    char *end;
    const char *text = take_option(words, name);
    long value = text ? strtol(text, &end, 10) : otherwise;
    if (text && (*end || end == text))
        die("%s takes a number, not '%s'", name, text);
    return (int)value;
}

void expect_no_more(const words_t *words)
{
    if (words->count)
        die("unknown argument '%s'", words->words[0]);
}

node_state_t *lock_or_die(enum lock lock)
{
    char path[512];
    node_state_t *state = state_lock(lock);
    if (state)
        return state;
    state_path(path, sizeof(path), "state");
    die("%s: %s (make it with: fake-nvml-ctl --node NAME init --gpu MODEL:COUNT)", path, strerror(errno));
}

int gpu_or_die(const node_state_t *state, int gpu)
{
    if (gpu < 0 || gpu >= (int)state->gpu_count)
        die("--gpu takes 0 to %u on node %s", state->gpu_count - 1, state->node);
    return gpu;
}

static int usage(void)
{
    fputs("usage: fake-nvml-ctl [--dir DIR] [--node NAME] VERB ...\n", stderr);
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        fprintf(stderr, "      %s %s\n", verbs[i].name, verbs[i].usage);
    return 2;
}

int main(int argc, char **argv)
{
    words_t words = { argc - 1, argv + 1 };
    const char *dir = NULL, *node = NULL;

    while (words.count >= 2 && !strncmp(words.words[0], "--", 2)) {
        if (!strcmp(words.words[0], "--dir"))
            dir = words.words[1];
        else if (!strcmp(words.words[0], "--node"))
            node = words.words[1];
        else
            return usage();
        drop(&words, 0, 2);
    }
    state_select(dir, node);
    for (size_t i = 0; words.count && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (!strcmp(words.words[0], verbs[i].name)) {
            drop(&words, 0, 1);
            verbs[i].run(&words);
            return 0;
        }
    }
    return usage();
}
