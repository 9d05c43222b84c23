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
 * Does the client's address belong to the name, or to a name with that ending
 * if it begins with a dot?  May block while a name server is asked.
 */
extern bool baton_host_matches(const char *pattern, const SockAddr *client);

#endif							/* BATON_HBA_HOST_H */
