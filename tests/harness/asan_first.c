/*-------------------------------------------------------------------------
 *
 * asan_first.c
 *	  Starts AddressSanitizer's runtime before any library's constructor.
 *
 * The runtime starts in the first malloc().  In a server that was not itself
 * built with ASan (Debian's) that comes from libgpg-error's constructor, in
 * bindtextdomain() and under glibc's _nl_state_lock.  Starting, the runtime
 * calls dlerror(), which translates its message and with that unlocks the
 * lock it could not take; the server's next bindtextdomain() waits forever.
 *
 * Preloaded beside libasan and linked with -z initfirst, this allocates when
 * nobody holds a lock yet.  See make check-sanitize.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

__attribute__((constructor))
static void
start_asan(void)
{
	free(malloc(1));
}
