/*-------------------------------------------------------------------------
 *
 * majors.h
 *		What PostgreSQL exports in another form in each major version.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_MAJORS_H
#define BATON_MAJORS_H

#include <time.h>

#include "access/tupdesc.h"
#include "catalog/pg_auth_members.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/acl.h"

#if PG_VERSION_NUM >= 180000
#include "storage/procnumber.h" /* MAX_BACKENDS */
#endif
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* part of postgres.h before */
#endif

/* ----------------------------------------------------------------
 *		What PostgreSQL exports in another form in each major version.
 *
 * One function for each, which means the same on all.
 * ----------------------------------------------------------------
 */

/* 18 has it, in place of pg_attribute_noreturn() */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Has input of the client been read from the socket, but not been used? */
extern bool baton_input_is_buffered(void);

/* What errors are written as for a client that has asked for that protocol. */
extern uint32 baton_frontend_protocol(uint32 asked);

/* A copy with what is no ASCII made visible, or question marks up to 15. */
extern char *baton_clean_ascii(const char *text);

/* Lasts as long as the process. */
extern WaitEventSet *baton_wait_set_create(int events);

/* Connections that are kept for administrators, and are as many free? */
extern int	baton_reserved_connections(void);
extern bool baton_has_free_connections(int count);

/* FATAL: those that are left are kept for administrators. */
extern void baton_connections_are_reserved(void);

/* Is the role that the backend was started for a superuser?  In a transaction. */
extern bool baton_authenticated_is_superuser(void);

extern AclResult baton_database_aclcheck(Oid database, Oid role, AclMode mode);
extern bool baton_database_ownercheck(Oid database, Oid role);
extern AclResult baton_tablespace_aclcheck(Oid tablespace, Oid role, AclMode mode);

/*
 * Does a role have the privileges of one that it is a member of?  16 says so for
 * each membership, before that the role did.  And of pg_database_owner, as a
 * database's owner?
 */
extern bool baton_membership_inherits(const FormData_pg_auth_members *membership,
									  bool role_inherits);
extern bool baton_owner_is_member(bool role_inherits);

/*
 * Has this process any lock that lies in the shared table?  Those taken by the
 * fast path do not.
 */
extern bool baton_holds_shared_lock(void);

/* Has this process that lock, in that mode? */
extern bool baton_lock_is_held(const LOCKTAG *tag, LOCKMODE mode);

/*
 * What InitPostgres takes of snapshots before it applies startup options: up to
 * 17 the transaction's, so that a client that begins with transaction_isolation
 * or transaction_deferrable is refused (25001); from 18 on none.
 */
extern void baton_login_take_snapshot(void);

/* Drops the temporary replication slots of this process. */
extern void baton_drop_temporary_slots(void);

/* The pages of a catalog that is shared by all databases, without one. */
extern BlockNumber baton_shared_catalog_size(Oid catalog);
extern Buffer baton_shared_catalog_read(Oid catalog, BlockNumber block);

/* Is the role's name another than the client's, by its database?  Up to 16. */
extern bool baton_user_namespaces(void);

/* Does a client of GSSAPI's leave credentials in its process?  From 16 on. */
extern bool baton_gss_delegates(void);

/* Is the role in force (SET ROLE, or the session's) a superuser? */
extern bool baton_current_role_is_superuser(void);

/* A column's statistics target, where its description has it: up to 16. */
extern int	baton_attribute_stattarget(const FormData_pg_attribute *attribute);
extern void baton_attribute_set_stattarget(FormData_pg_attribute *attribute, int target);

/* To be called when a column's attribute has been filled in by hand. */
extern void baton_attribute_is_complete(TupleDesc description, int index);

/* ----------------------------------------------------------------
 *		The time for intervals and deadlines of ours.
 *
 * GetCurrentTimestamp() is the wall's: it may be set back or forward, and what waits
 * for it then waits for hours, or not at all.  It is for what is shown, and for
 * VALID UNTIL; tools/check-clocks has the list.
 * ----------------------------------------------------------------
 */

/* Microseconds since some moment before the server started. */
static inline int64
baton_monotonic_us(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Until then, rounded up; 0 if it is past. */
static inline long
baton_ms_until(int64 deadline_us)
{
	int64		left_us = deadline_us - baton_monotonic_us();

	return left_us <= 0 ? 0 : (long) ((left_us + 999) / 1000);
}

/* ----------------------------------------------------------------
 *		Functions at which tests stop a backend by a debugger: each stays one of
 *		its own, by its own name, whatever the compiler makes of a whole program
 *		(extension/Makefile).
 * ----------------------------------------------------------------
 */

/* gcc 8 and later; others make no clones of a function that is not inlined */
#if defined(__has_attribute)
#if __has_attribute(noipa)
#define BATON_STOP_POINT __attribute__((noipa))
#endif
#endif

#ifndef BATON_STOP_POINT
#define BATON_STOP_POINT pg_noinline
#endif

#endif							/* BATON_MAJORS_H */
