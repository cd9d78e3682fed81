/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel images of this build, as data: which there are, and on which GPUs each can run.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>

const struct nvs_image *
nvs_find_image(const char *name)
{
    for (int i = 0; i < nvs_image_count; i++) {
        if (nvs_images[i].size != 0 && strcmp(nvs_images[i].name, name) == 0) {
            return &nvs_images[i];
        }
    }
    return NULL;
}

/* One word of nvs_image.archs. Machine code runs on its own major version from its minor version
 * on, PTX on its compute capability and all above; with the suffix "a" either runs on just the
 * compute capability it names, and with "f" on the same major version (CUDA C++ Programming Guide,
 * "Compute Capabilities: Feature Set Compiler Targets"). */
static bool
word_covers(const char *word, int cc)
{
    bool is_ptx = strncmp(word, "compute_", 8) == 0;
    if (!is_ptx && strncmp(word, "sm_", 3) != 0) {
        return false;
    }
    char *end = NULL;
    long target = strtol(word + (is_ptx ? 8 : 3), &end, 10);
    if (*end == 'a') {
        return cc == target;
    }
    bool same_major = cc / 10 == target / 10;
    return cc >= target && (same_major || (is_ptx && *end != 'f'));
}

bool
nvs_image_covers(const struct nvs_image *image, int cc)
{
    for (const char *word = image->archs; *word != '\0';) {
        if (word_covers(word, cc)) {
            return true;
        }
        word += strcspn(word, " ");
        word += strspn(word, " ");
    }
    return false;
}
