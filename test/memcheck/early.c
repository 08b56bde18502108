/*
 * Preloaded with AddressSanitizer's runtime, and initialised before all other libraries: lets the runtime begin here. It would
 * else begin with the first malloc(), which libgpg-error makes under the lock of gettext, and want gettext itself.
 */
#include <stdlib.h>

static void *volatile block;

__attribute__((constructor)) static void begin(void)
{
	block = malloc(1);
	free(block);
}
