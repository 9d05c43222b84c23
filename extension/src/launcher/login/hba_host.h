/*-------------------------------------------------------------------------
 *
 * hba_host.h
 *		Host names in pg_hba.conf.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HBA_HOST_H
#define BATON_HBA_HOST_H

#include "libpq/pqcomm.h"

/*
 * The name of the client's address, if it is that one, or if it has that ending
 * and the pattern begins with a dot; else NULL.  Valid until the next call.  May
 * block while a name server is asked.
 */
extern const char *baton_host_name(const char *pattern, const SockAddr *client);

#endif							/* BATON_HBA_HOST_H */
