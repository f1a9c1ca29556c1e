/* Any bytes as a safetensors header: checked without a fault. */
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gm_error err = {0};
    gm_safetensors_check(data, size, size, "fuzz", &err);
    return 0;
}
