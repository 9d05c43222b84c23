/*-------------------------------------------------------------------------
 *
 * majors.h
 *		What PostgreSQL exports in different forms in its major versions.
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
 *		What PostgreSQL exports in different forms in its major versions.
 *
 * One function for each, with the same meaning in all majors.
 */

/* 18 has it, in place of pg_attribute_noreturn() */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Has input of the client been read from the socket, but not been used? */
extern bool baton_input_is_buffered(void);

/*
 * The protocol version in which errors are written for a client that has asked
 * for that one.
 */
extern uint32 baton_frontend_protocol(uint32 asked);

/*
 * A copy in which bytes that are no ASCII are made visible, or replaced by
 * question marks up to 15.
 */
extern char *baton_clean_ascii(const char *text);

/* A wait set that lasts as long as the process. */
extern WaitEventSet *baton_wait_set_create(int events);

/*
 * The number of connections reserved for administrators; are that many free?
 */
extern int	baton_reserved_connections(void);
extern bool baton_has_free_connections(int count);

/* FATAL: the remaining connections are reserved for administrators. */
extern void baton_connections_are_reserved(void);

/*
 * Is the role that the backend was started for a superuser?  In a transaction.
 */
extern bool baton_authenticated_is_superuser(void);

extern AclResult baton_database_aclcheck(Oid database, Oid role, AclMode mode);
extern bool baton_database_ownercheck(Oid database, Oid role);
extern AclResult baton_tablespace_aclcheck(Oid tablespace, Oid role, AclMode mode);

/*
 * Does a role have the privileges of a role that it is a member of?  From 16
 * on each membership says so, before that the role did.  And as a database's
 * owner, those of pg_database_owner?
 */
extern bool baton_membership_inherits(const FormData_pg_auth_members *membership,
									  bool role_inherits);
extern bool baton_owner_is_member(bool role_inherits);

/*
 * Does this process hold any lock that is in the shared table?  Locks taken by
 * the fast path are not.
 */
extern bool baton_holds_shared_lock(void);

/* Does this process hold that lock, in that mode? */
extern bool baton_lock_is_held(const LOCKTAG *tag, LOCKMODE mode);

/*
 * Takes the snapshots that InitPostgres takes before it applies startup
 * options: up to 17 the transaction's, so that a client that begins with
 * transaction_isolation or transaction_deferrable is refused (25001); from 18
 * on none.
 */
extern void baton_login_take_snapshot(void);

/* Drops the temporary replication slots of this process. */
extern void baton_drop_temporary_slots(void);

/*
 * The pages of a catalog that all databases share, for a process without a
 * database.
 */
extern BlockNumber baton_shared_catalog_size(Oid catalog);
extern Buffer baton_shared_catalog_read(Oid catalog, BlockNumber block);

/*
 * Does the database determine the role's name, besides the client's user name?
 * Up to 16.
 */
extern bool baton_user_namespaces(void);

/*
 * Does a client that uses GSSAPI leave credentials in its process?  From 16
 * on.
 */
extern bool baton_gss_delegates(void);

/* Is the role in force (SET ROLE, or the session's) a superuser? */
extern bool baton_current_role_is_superuser(void);

/*
 * A column's statistics target, in majors that have it in tuple descriptors:
 * up to 16.
 */
extern int	baton_attribute_stattarget(const FormData_pg_attribute *attribute);
extern void baton_attribute_set_stattarget(FormData_pg_attribute *attribute, int target);

/* Called when a column's attribute has been filled in by hand. */
extern void baton_attribute_is_complete(TupleDesc description, int index);

/* ----------------------------------------------------------------
 *		The clock for intervals and deadlines of pg_baton.
 *
 * GetCurrentTimestamp() is the wall clock: it may be set back or forward, and
 * a wait for it then takes hours, or no time at all.  It is for values that
 * are shown, and for VALID UNTIL; tools/check-clocks has the list.
 */

/* Microseconds since some moment before the server started. */
static inline int64
baton_monotonic_us(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Milliseconds until the deadline, rounded up; 0 if it is past. */
static inline long
baton_ms_until(int64 deadline_us)
{
	int64		left_us = deadline_us - baton_monotonic_us();

	return left_us <= 0 ? 0 : (long) ((left_us + 999) / 1000);
}

/* ----------------------------------------------------------------
 *		Functions at which tests stop a backend by a debugger: each stays a
 *		separate function under its own name, whatever the compiler does with
 *		a whole program (extension/Makefile).
 */

/*
 * gcc 8 and later; other compilers do not clone a function that is not inlined
 */
#if defined(__has_attribute)
#if __has_attribute(noipa)
#define BATON_STOP_POINT __attribute__((noipa))
#endif
#endif

#ifndef BATON_STOP_POINT
#define BATON_STOP_POINT pg_noinline
#endif

#endif							/* BATON_MAJORS_H */
