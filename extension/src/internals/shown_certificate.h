/*-------------------------------------------------------------------------
 *
 * shown_certificate.h
 *		The certificate that a client was shown by somebody else.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SHOWN_CERTIFICATE_H
#define BATON_SHOWN_CERTIFICATE_H

#include "libpq/libpq-be.h"

/*
 * Puts it into a connection that has no TLS of its own; false if it cannot be
 * bound to.  In DER; of length 0: none, where a session is only asserted.
 */
extern bool baton_certificate_put(Port *port, const char *certificate, Size length);

/* Takes it out again. */
extern void baton_certificate_remove(Port *port);

#endif							/* BATON_SHOWN_CERTIFICATE_H */
