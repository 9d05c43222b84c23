/*-------------------------------------------------------------------------
 *
 * ident_map.h
 *		pg_ident.conf: which operating system user may be which role.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_IDENT_MAP_H
#define BATON_IDENT_MAP_H

/* (Re)reads the file; with errors in it, what was read before stays. */
extern void baton_ident_load(void);

/* Without a map the names must be the same.  As check_usermap in hba.c. */
extern bool baton_ident_matches(const char *map, const char *role, Oid role_oid,
								const char *system_user);

#endif							/* BATON_IDENT_MAP_H */
