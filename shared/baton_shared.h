/*-------------------------------------------------------------------------
 *
 * baton_shared.h
 *		What the extension (C) and the dispatcher (Rust) share: the layout of
 *		the two shared memories and of the messages between the processes.
 *
 * There are two shared memories, each a memfd:
 *
 * CONTROL is created by the postmaster when the library is preloaded, is
 * mapped read-write by every process of the server (inherited by fork) and
 * by the dispatcher (whose launcher passes it the descriptor).  It lives as
 * long as the postmaster.  It holds words that both sides write: the backend
 * slots, the pool slots, the session slots and the statement counters.
 * Who may write a field is said at the field.
 *
 * ARENA is created by each dispatcher, is written by it alone, and is mapped
 * read-only by the backends that attach to it.  It holds a record a session
 * and the session contexts at rest.
 *
 * Everything here is plain fixed-width fields in native byte order: both ends
 * are on one machine.  C includes these files; dispatcher/build.rs makes Rust of
 * them (and says what it understands: integers, structures without padding);
 * the tests' harness reads them, too.  Lists with texts are .inc files, which
 * both languages are made from.
 *
 * BATON_LAYOUT_VERSION is a hash of all of it but comments, computed by
 * layout-version in this folder for all three, and compared whenever two
 * processes meet.
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
