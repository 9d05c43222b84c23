/*-------------------------------------------------------------------------
 *
 * baton_shared.h
 *		What the extension (C) and the dispatcher (Rust) share: the layout of
 *		the two shared memories and of the messages between the processes.
 *
 * There are two shared memories, each a memfd:
 *
 * The postmaster creates CONTROL when the library is preloaded. Every process
 * of the server maps it read-write (inherited by fork), and so does the
 * dispatcher (the launcher passes it the descriptor). It lives as long as the
 * postmaster. It holds words that both sides write: the backend slots, the
 * pool slots, the session slots and the statement counters. A comment at each
 * field says which process may write it.
 *
 * Each dispatcher creates an ARENA. Only that dispatcher writes it; the
 * backends that attach to it map it read-only. It holds one record per session
 * and the session contexts at rest.
 *
 * All fields have a fixed width and native byte order: both ends are on one
 * machine. C includes these files; dispatcher/build.rs translates them to Rust
 * (and says what it understands: integers, structures without padding); the
 * tests' harness reads them, too. Lists with texts are .inc files, from which
 * both languages are generated.
 *
 * BATON_LAYOUT_VERSION is a hash of all of it except comments, computed by
 * layout-version in this folder for all three, and compared whenever two
 * processes connect.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SHARED_H
#define BATON_SHARED_H

#include <stdint.h>

#define BATON_MAGIC 0x3130304E4F544142
#ifndef BATON_LAYOUT_VERSION
#error "BATON_LAYOUT_VERSION is to be what shared/layout-version prints"
#endif

#include "baton_control_memory.h"
#include "baton_arena_memory.h"
#include "baton_messages.h"

#endif							/* BATON_SHARED_H */
