/*
 * Preloaded with AddressSanitizer's runtime, and initialised before all other libraries, so that the runtime starts
 * here. Otherwise it would start at the first malloc(), which libgpg-error calls under the lock of gettext, and would
 * call gettext itself.
 */
#include <stdlib.h>

static void *volatile block;

__attribute__((constructor)) static void begin(void)
{
	block = malloc(1);
	free(block);
}
