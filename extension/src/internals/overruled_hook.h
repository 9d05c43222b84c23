/*-------------------------------------------------------------------------
 *
 * overruled_hook.h
 *		A ClientAuthentication_hook that is told and cannot refuse.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OVERRULED_HOOK_H
#define BATON_OVERRULED_HOOK_H

#include "libpq/auth.h"

/* Calls it; if it refuses the client, that is as if it had returned. */
extern void baton_overruled_call(ClientAuthentication_hook_type hook, Port *port, int status);

/* From emit_log_hook; does not return if the message is such a refusal. */
extern void baton_overruled_log(const ErrorData *edata);

#endif							/* BATON_OVERRULED_HOOK_H */
