/*-------------------------------------------------------------------------
 *
 * gss_startup.h
 *		A client's request for GSSAPI encryption, answered by the backend that
 *		becomes its own.  See gss_startup.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_GSS_STARTUP_H
#define BATON_GSS_STARTUP_H

/*
 * The client's socket is in place, and nothing has been answered.  Afterwards the
 * server knows all that the client's own startup packet says.
 */
extern void baton_gss_startup(int dispatcher);

#endif							/* BATON_GSS_STARTUP_H */
