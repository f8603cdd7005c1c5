/* init and policy: how the node is made and how its driver behaves. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "caps.h"
#include "ctl.h"
#include "rules.h"

static bool on_or_off(const char *text)
{
    if (!strcmp(text, "on"))
        return true;
    if (!strcmp(text, "off"))
        return false;
    die("'%s' is neither on nor off", text);
}

static void add_gpu(node_state_t *state, int model, bool mig)
{
    char seed[160];
    if (state->gpu_count == MAX_GPUS)
        die("a node has at most %d GPUs", MAX_GPUS);
    gpu_t *gpu = &state->gpus[state->gpu_count];
    gpu->model = (uint32_t)model;
    gpu->minor = state->gpu_count;
    gpu->mode_current = gpu->mode_pending = mig && gpu_model((unsigned int)model)->profile_count;
    snprintf(seed, sizeof(seed), "%s/%u", state->node, state->gpu_count);
    make_uuid(gpu->uuid, "GPU", seed, -1, -1, 0);
    state->gpu_count++;
}

/* MODEL:COUNT or MODEL:COUNT:on|off */
static void add_gpus(node_state_t *state, const char *spec, bool mig)
{
    char text[96];
    snprintf(text, sizeof(text), "%s", spec);
    char *count = strchr(text, ':'), *mode = count ? strchr(count + 1, ':') : NULL;
    if (count)
        *count++ = '\0';
    if (mode)
        *mode++ = '\0';
    int model = gpu_model_find(text);
    if (model < 0) {
        for (unsigned int i = 0; i < gpu_model_count(); i++)
            fprintf(stderr, "%s\n", gpu_model(i)->key);
        die("no GPU model is called '%s': take one of the above", text);
    }
    int number = count ? atoi(count) : 1;
    for (int i = 0; i < number; i++)
        add_gpu(state, model, mode ? on_or_off(mode) : mig);
}

static void set_defaults(node_state_t *state, const char *driver, const char *caps_root, const char *kind)
{
    snprintf(state->node, sizeof(state->node), "%s", state_node());
    snprintf(state->driver, sizeof(state->driver), "%s", driver ? driver : "580.95.05");
    snprintf(state->caps_root, sizeof(state->caps_root), "%s", caps_root ? caps_root : "");
    state->policy.log_calls = 1;
    state->policy.caps_major = 511;
    state->policy.caps_files = kind && !strcmp(kind, "file");
    if (kind && strcmp(kind, "file") && strcmp(kind, "device"))
        die("--caps-kind takes device or file, not '%s'", kind);
}

void verb_init(words_t *words)
{
    const char *mig = take_option(words, "--mig"), *driver = take_option(words, "--driver");
    const char *caps_root = take_option(words, "--caps-root"), *kind = take_option(words, "--caps-kind");
    const char *spec;
    node_state_t *state = state_create();

    if (!state)
        die("cannot make a state in %s", state_dir());
    memset(state, 0, sizeof(*state));
    set_defaults(state, driver, caps_root, kind);
    while ((spec = take_option(words, "--gpu")))
        add_gpus(state, spec, mig && on_or_off(mig));
    expect_no_more(words);
    if (!state->gpu_count)
        die("a node needs at least one GPU: --gpu MODEL:COUNT");
    state_publish();
    caps_sync(state);
    state_unlock();
}

typedef struct {
    const char *key;
    size_t offset;
    const char *names[3]; /* values 0, 1, 2; all NULL: a number */
} setting_t;

#define SETTING(key, field, ...) { key, offsetof(policy_t, field), { __VA_ARGS__ } }

static const setting_t settings[] = {
    SETTING("start-order", start_order, "low", "high", NULL),
    SETTING("gi-ids", gi_id_order, "low", "high", NULL),
    SETTING("uuid", fresh_uuids, "same", "fresh", NULL),
    SETTING("permission", permission, "auto", "allow", "deny"),
    SETTING("self-reset", self_reset, "off", "on", NULL),
    SETTING("query-off", query_off, "off", "on", NULL),
    SETTING("shift-minor", shift_minor, "off", "on", NULL),
    SETTING("log", log_calls, "off", "on", NULL),
    SETTING("keep-caps", keep_caps, "off", "on", NULL),
    SETTING("caps-major", caps_major, NULL, NULL, NULL),
    SETTING("latency-init-us", latency_init_us, NULL, NULL, NULL),
    SETTING("latency-create-us", latency_create_us, NULL, NULL, NULL),
    SETTING("latency-destroy-us", latency_destroy_us, NULL, NULL, NULL),
    SETTING("latency-mode-us", latency_mode_us, NULL, NULL, NULL),
    SETTING("latency-other-us", latency_other_us, NULL, NULL, NULL),
};

static uint32_t parse_value(const setting_t *setting, const char *value)
{
    char *end;
    if (!setting->names[0]) {
        unsigned long number = strtoul(value, &end, 10);
        if (*end || end == value)
            die("%s takes a number, not '%s'", setting->key, value);
        return (uint32_t)number;
    }
    for (uint32_t i = 0; i < 3 && setting->names[i]; i++)
        if (!strcmp(setting->names[i], value))
            return i;
    die("%s does not take '%s'", setting->key, value);
}

static void set_one(policy_t *policy, const char *word)
{
    const char *equals = strchr(word, '=');
    for (size_t i = 0; equals && i < sizeof(settings) / sizeof(settings[0]); i++) {
        const setting_t *setting = &settings[i];
        if (strlen(setting->key) == (size_t)(equals - word) && !strncmp(setting->key, word, strlen(setting->key))) {
            *(uint32_t *)((char *)policy + setting->offset) = parse_value(setting, equals + 1);
            return;
        }
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        fprintf(stderr, "%s\n", settings[i].key);
    die("'%s' is no KEY=VALUE of one of the above keys", word);
}

void verb_policy(words_t *words)
{
    node_state_t *state = lock_or_die(STATE_WRITE);
    for (int i = 0; i < words->count; i++)
        set_one(&state->policy, words->words[i]);
    state_commit();
}
