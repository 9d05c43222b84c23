/*-------------------------------------------------------------------------
 *
 * baton_messages.h
 *		The messages between dispatcher, backends and launcher.
 *
 * Part of baton_shared.h, which has the rules for all of it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_MESSAGES_H
#define BATON_MESSAGES_H

#include <stdint.h>

/* ---------------------------------------------------------------------
 * Messages on the control socket (AF_UNIX, SOCK_SEQPACKET, path
 * "pg_stat_tmp/pg_baton.ctl" in the data directory), on the launcher's channel, and on
 * the pools' ready queues.  One frame a packet, at most BATON_FRAME_MAX bytes.
 * Frame = BatonFrameHeader, then `length` bytes, without alignment.  A payload
 * that is not described at its number has the fields of a list NAME_FIELDS below.
 * ---------------------------------------------------------------------
 */
#define BATON_SESSION_THREADS_MAX 8

#define BATON_FRAME_MAX 65536

typedef struct BatonFrameHeader
{
	uint16_t	kind;			/* BATON_MSG_* */
	uint16_t	flags;			/* BATON_FRAME_* */
	uint32_t	length;			/* bytes of payload in this frame */
	uint64_t	session;		/* session id the message is about, or 0 */
} BatonFrameHeader;

#define BATON_FRAME_MORE 1		/* the payload continues in the next frame of
								 * the same kind and session */

/* any process -> dispatcher, first message on a control connection */
#define BATON_MSG_HELLO_BACKEND 1	/* u32 layout_version, then
									 * HELLO_BACKEND_FIELDS */
#define BATON_MSG_HELLO_LAUNCHER 2	/* u32 layout_version, u64 secret, u32 pid */
#define BATON_MSG_HELLO_QUERY 3 /* u32 layout_version, u64 secret, u32 what
								 * (BATON_QUERY_*), then what that constant
								 * describes */
#define BATON_MSG_HELLO_TICKET 4	/* u32 layout_version, u64 ticket, u32
									 * pid: a starting backend asks for the
									 * ticket's client. The connection stays
									 * open as long as the backend */
#define BATON_MSG_HELLO_LOG 5	/* u32 layout_version, u64 secret, u32 pid:
								 * the log writer, which is sent LOG_LINE */
#define BATON_MSG_HELLO_MONITOR 6	/* u32 layout_version, u64 secret, u32
									 * pid: the launcher gives this connection
									 * to the monitor. From here on it carries
									 * only MONITOR_QUESTION, and answers as
									 * to HELLO_QUERY */

#define BATON_MSG_HELLO_AGAIN 7 /* session that it holds, or 0; u32
								 * layout_version, u32 slot, u32 count, that
								 * many u64: sessions of which it has told,
								 * and tells again: changes, and then RELEASE
								 * or GREETED. From a backend whose slot says
								 * that this dispatcher has adopted it; no
								 * answer */

/* dispatcher -> backend */
#define BATON_MSG_WELCOME 10	/* WELCOME_FIELDS; descriptors: ready queue
								 * (read end), arena, and the epolls of
								 * sessions (BATON_SESSION_THREADS_MAX at
								 * most); a session's epoll is that at its
								 * index modulo their number */
#define BATON_MSG_REFUSED 11	/* string: the reason; the backend exits with
								 * it */
#define BATON_MSG_ASSIGN 12		/* session; i64 CLOCK_MONOTONIC when it was
								 * given, in microseconds; descriptor: the
								 * client's socket. The ready queue carries
								 * the same frame */
#define BATON_MSG_POKE 13		/* look at the ready queue again */
#define BATON_MSG_RETIRE 14		/* look at `retire` in your slot */
#define BATON_MSG_RECALL 15		/* session: give it back if it is idle */
#define BATON_MSG_EVICT 16		/* session: end it if it is idle and
								 * dedicated; there are too many such sessions */

#define BATON_MSG_CLIENT 17		/* CLIENT_FIELDS; descriptor: the client's
								 * socket */
#define BATON_MSG_NATIVE_ANSWER 18	/* NATIVE_ANSWER_FIELDS */

#define BATON_MSG_END_IDLE 19	/* session: end it if it has been idle in its
								 * transaction since i64 state_since_us
								 * (pg_baton.extra_idle_timeout) */

#define BATON_TICKET_NATIVE 0	/* an ordinary connection for life */
#define BATON_TICKET_LOGIN 1	/* authenticate the client, report it, and
								 * exit */
#define BATON_TICKET_GSS 2		/* begin GSSAPI encryption, read the client's
								 * startup packet and send it (STARTUP); then
								 * as BATON_TICKET_NATIVE */

/* backend -> dispatcher */
#define BATON_MSG_PUT 20		/* session; u16 kind, u16 key_length, key, u32
								 * counter use, i64 aux; if counter use is 1 a
								 * BatonStatementCounter, to be kept in a slot
								 * allocated to the item; value: the rest.
								 * Adds or replaces an item, and takes effect
								 * at the next RELEASE or GREETED */
#define BATON_MSG_DELETE 21		/* session; u16 kind, u16 key_length, key */
#define BATON_MSG_RELEASE 22	/* session given back; the DISPATCHER re-arms
								 * its socket. Follows PUT/DELETE. (A backend
								 * with no news re-arms the socket itself and
								 * sends nothing, unless it has greeted the
								 * session: see baton_session_release) */
#define BATON_MSG_GREETED 23	/* session; u32 BATON_GREETING_*; u64
								 * start_settings, for its record; u32 length,
								 * that many bytes of NoticeResponses,
								 * REPORTED value, as above: what was sent.
								 * The backend keeps the session */
#define BATON_MSG_END 24		/* session has ended (client gone or FATAL);
								 * payload: u32 BATON_END_*. The dispatcher
								 * closes its socket and forgets it */
#define BATON_MSG_DEDICATED 25	/* session; u32 cause (BATON_CAUSE_*); 0:
								 * shared again */
#define BATON_MSG_RETIRING 26	/* u32 BATON_RETIRES_*, string: the reason; no
								 * more sessions may be assigned */

#define BATON_MSG_AUTHENTICATED 27	/* BATON_TICKET_LOGIN: the server has let
									 * the client in. AUTHENTICATED_FIELDS */

#define BATON_MSG_NATIVE_IN 28	/* BATON_TICKET_NATIVE, _GSS: the server has
								 * let the client in.  NATIVE_IN_FIELDS */
#define BATON_MSG_STARTUP 29	/* BATON_TICKET_GSS: the client's startup
								 * packet, or cancel request, as decrypted,
								 * without its length */
#define BATON_MSG_AWAITS_CLIENT 35	/* until the server has let the client in:
									 * u8: the client owes an answer (1), or
									 * has given it (0) */

/* For how long other sessions of the same kind may get the same greeting. */
#define BATON_GREETING_NEVER 0
#define BATON_GREETING_ALWAYS 1 /* while login_generation and settings do not
								 * change */
#define BATON_GREETING_NAMES 2	/* ... nor names_generation */
#define BATON_GREETING_OF_ROLES 4	/* or-ed in: other roles were looked up */
#define BATON_GREETING_BY_PRIVILEGES 8	/* or-ed in: not every role may set a
										 * startup option */

#define BATON_RETIRES_ASKED 0	/* the dispatcher asked for it */
#define BATON_RETIRES_UNCLEAN 1 /* what a session left cannot be removed */
#define BATON_RETIRES_SETTINGS 2	/* a session needs a backend that was
									 * started after settings changed */

#define BATON_END_CLIENT_CLOSED 1
#define BATON_END_CLIENT_TERMINATED 2	/* 'X' */
#define BATON_END_ERROR 3

/* launcher -> dispatcher */
#define BATON_MSG_PARAMETERS 30 /* u32 count, then pairs of strings: the whole
								 * configuration, at start and at each reload */
#define BATON_MSG_LOGIN_ANSWER 31	/* LOGIN_ANSWER_FIELDS */
#define BATON_MSG_SHUTDOWN 32	/* u32: 1: the server is stopping, 0: another
								 * dispatcher is to be started */
#define BATON_MSG_POOL_SETTINGS 33	/* u32 role, u32 database, then for each
									 * of pool_settings.inc: i32 value (kB of
									 * memory, BATON_MODE_*), u32
									 * BATON_SOURCE_* */

#define BATON_MSG_PASSPHRASE 34 /* passphrase of the server's key, the whole
								 * frame: precedes the PARAMETERS by which the
								 * key is loaded, if there is a passphrase */

/* the source of a pool's setting, by pg_settings' words; the last one wins */
#define BATON_SOURCE_DEFAULT 0
#define BATON_SOURCE_FILE 1
#define BATON_SOURCE_COMMAND_LINE 2
#define BATON_SOURCE_GLOBAL 3	/* ALTER ROLE ALL */
#define BATON_SOURCE_DATABASE 4
#define BATON_SOURCE_USER 5
#define BATON_SOURCE_DATABASE_USER 6

/* pg_baton.pool_mode */
#define BATON_MODE_SHARED 0
#define BATON_MODE_DEDICATED 1
#define BATON_MODE_NATIVE 2

/* dispatcher -> launcher */
#define BATON_MSG_LOGIN_QUESTION 40 /* LOGIN_QUESTION_FIELDS */
#define BATON_MSG_POOL_QUESTION 41	/* u32 role, u32 database; answered by
									 * POOL_SETTINGS */

/* dispatcher -> log writer */
#define BATON_MSG_LOG_LINE 42	/* LOG_LINE_FIELDS */

#define BATON_LOG_LOG 0
#define BATON_LOG_WARNING 1
#define BATON_LOG_ERROR 2
#define BATON_LOG_FATAL 3

/* monitor -> dispatcher */
#define BATON_MSG_MONITOR_QUESTION 43	/* u32 BATON_QUERY_* of a view; after
										 * the answer to the last question */

/* monitor -> launcher, and back */
#define BATON_MSG_SERVER_QUESTION 44	/* u8 1: a connection to the
										 * dispatcher is wanted */
#define BATON_MSG_SERVER_ANSWER 45	/* SERVER_ANSWER_FIELDS; descriptor: the
									 * connection, if the dispatcher accepts
									 * any */

/* ---------------------------------------------------------------------
 * Payloads of several fields, in their order. C generates a structure for
 * each, and functions that read and write it (dispatcher_link.h); build.rs
 * does the same in Rust. Types: u8, u16, u32, u64, i32, i64; bool: u8, 0 or 1;
 * address: u8[16], as in the memories; string: u32 length, then that many
 * bytes, none of them zero; bytes: the same with any bytes.
 * ---------------------------------------------------------------------
 */

/* its slot, and the role and database that it was opened for */
#define BATON_HELLO_BACKEND_FIELDS(field) \
	field(u32, slot) \
	field(u64, attach_token) \
	field(u32, pid) \
	field(u32, role_oid) \
	field(u32, database_oid)

#define BATON_WELCOME_FIELDS(field) \
	field(u32, layout_version) \
	field(u32, client_fd_number) \
	field(u64, arena_size)

#define BATON_CLIENT_FIELDS(field) \
	field(u32, kind)					/* BATON_TICKET_* */ \
	field(u16, family) \
	field(u16, port) \
	field(u32, scope) \
	field(address, peer_address) \
	field(u16, local_port) \
	field(address, local_address) \
	field(bool, is_relayed)				/* by TLS: a relay has the other end */ \
	field(bool, has_certificate)		/* a certificate that was verified */ \
	field(string, common_name) \
	field(string, distinguished_name)	/* RFC 2253 */ \
	field(bytes, server_certificate)	/* the certificate shown to the client: DER, or empty */ \
	field(u32, bits)					/* from here on: as in BatonTls */ \
	field(string, version) \
	field(string, cipher) \
	field(string, client_dn) \
	field(string, client_serial) \
	field(string, issuer_dn)

#define BATON_NATIVE_ANSWER_FIELDS(field) \
	field(string, why)					/* why the session is refused (53300); "": it is accepted */ \
	field(string, detail)

#define BATON_AUTHENTICATED_FIELDS(field) \
	field(bool, by_gss) \
	field(string, principal)			/* of GSSAPI */ \
	field(bool, had_to_prove) \
	field(string, method)				/* from 16 on */ \
	field(string, identity)		/* the proven identity */

#define BATON_NATIVE_IN_FIELDS(field) \
	field(u32, role_oid) \
	field(bool, superuser)

#define BATON_LOGIN_QUESTION_FIELDS(field) \
	field(u32, request) \
	field(bool, is_host)				/* not a Unix socket */ \
	field(u8, family)					/* as peer_family, low byte */ \
	field(address, peer_address) \
	field(u16, port) \
	field(string, user) \
	field(string, database) \
	field(string, os_user)				/* the peer's, on a Unix socket; "": unknown */ \
	field(bool, is_secure)				/* by TLS */ \
	field(bool, has_ca)					/* its certificate would have been verified */ \
	field(bool, has_certificate)		/* it was verified */ \
	field(string, common_name) \
	field(string, distinguished_name)	/* RFC 2253 */

/*
 * refuse_*: when the refusal, if any, is sent; if none is set, once the client
 * is authenticated.
 *
 * good_until (TimestampTz): until then the same question gets the same answer,
 * request and counts of connections aside, unless login_generation is raised.
 */
#define BATON_LOGIN_ANSWER_FIELDS(field) \
	field(u32, request) \
	field(u32, method)					/* BATON_AUTH_* */ \
	field(string, method_name) \
	field(string, verifier)				/* rolpassword; "": none */ \
	field(bool, password_expired) \
	field(u32, role) \
	field(u32, database) \
	field(bool, superuser) \
	field(i32, role_limit)				/* -1: none */ \
	field(i32, database_limit) \
	field(i32, role_backends)			/* other than pool backends, as the server counts */ \
	field(i32, database_backends) \
	field(string, refusal_sqlstate)		/* "": accepted */ \
	field(string, refusal_message) \
	field(string, refusal_detail) \
	field(string, refusal_hint) \
	field(bool, refuse_first)			/* at once, as for reject and no matching line */ \
	field(bool, refuse_method)			/* at once, unless a backend authenticates the client, and refuses it */ \
	field(bool, refuse_proof)			/* in place of AuthenticationOk */ \
	field(bool, peer_match)				/* for peer: os_user may log in as user */ \
	field(i64, good_until)				/* 0: must not be kept */ \
	field(bool, ask_backend)			/* a backend must greet: only a backend can check CONNECT */ \
	field(bool, fires_triggers)			/* a backend must greet, for login triggers */ \
	field(u8, native)					/* BATON_NATIVE_* */ \
	field(i32, max_sessions)			/* pg_baton.pool_max_sessions; -1: none */ \
	field(bool, is_apart)				/* its backends serve no other role */ \
	field(u8, concerns)					/* BATON_CONCERNS_*: changes beside those of the hashes */ \
	field(string, hba_place)			/* the line's file and number as the log shows them; "": none */ \
	field(string, hba_detail)			/* for the log, if the authentication fails; "": none */ \
	field(string, role_detail)			/* likewise: why no password is right; "": one is */ \
	field(u32, role_hash)				/* AUTHNAME's of the user's name, even if there is no such role */ \
	field(u32, database_hash)			/* DATABASEOID's */ \
	field(u8, console)			/* BATON_CONSOLE_* */

/*
 * The console of the pool answers to this name of a database, unless there is a
 * database of this name. What it lets the client do.
 */
#define BATON_CONSOLE_DATABASE "pgbouncer"
#define BATON_CONSOLE_NOT 0		/* the client does not want the console, or
								 * may not have it */
#define BATON_CONSOLE_SHOW 1	/* privileges of pg_monitor */
#define BATON_CONSOLE_ALL 2		/* superuser */

/*
 * the login changes that concern the answer: of any role, of any database, of
 * memberships
 */
#define BATON_CONCERNS_ANY_ROLE 1
#define BATON_CONCERNS_ANY_DATABASE 2
#define BATON_CONCERNS_MEMBERSHIPS 4
#define BATON_NATIVE_NOT 0
#define BATON_NATIVE_POOL_MODE 1
#define BATON_NATIVE_FAILED_CHECK 2 /* no backend of the pool can be opened:
									 * pg_hba.c does not work */
#define BATON_NATIVE_DELEGATION 3	/* its credentials go to a single process */

#define BATON_AUTH_TRUST 1
#define BATON_AUTH_REJECT 2
#define BATON_AUTH_SCRAM 3
#define BATON_AUTH_MD5 4
#define BATON_AUTH_PASSWORD 5
#define BATON_AUTH_PEER 6
#define BATON_AUTH_BY_SERVER 7	/* a backend does it, on the client's socket */

/*
 * A line of the server's log.  With is_client it is about the client that the
 * other fields describe, as far as they are known.
 */
#define BATON_LOG_LINE_FIELDS(field) \
	field(u8, level)					/* BATON_LOG_* */ \
	field(string, sqlstate)				/* "": none */ \
	field(string, message) \
	field(string, detail)				/* "": none */ \
	field(string, hint)					/* "": none */ \
	field(bool, is_client) \
	field(u32, pid)						/* of the session; 0: the dispatcher's */ \
	field(i64, since)					/* TimestampTz; 0: the session has not begun */ \
	field(string, user)					/* "": unknown, as all of these */ \
	field(string, database) \
	field(string, host)					/* as %h */ \
	field(string, port) \
	field(string, application_name)

/* what the launcher knows of the server and its dispatchers */
#define BATON_SERVER_ANSWER_FIELDS(field) \
	field(u8, in_recovery) \
	field(u8, is_stopping) \
	field(u32, dispatcher_starts)	/* since the server started */ \
	field(u64, descriptors)			/* of the dispatcher; 0: unknown, as these */ \
	field(u64, descriptors_most)	/* the limit */ \
	field(u64, resident_bytes)		/* memory */ \
	field(string, server_version) \
	field(string, version)			/* of the library */ \
	field(string, dispatcher_version) \
	field(string, dispatcher_build)

/*
 * HELLO_QUERY answers: frames BATON_MSG_ROW, each u32 columns, then strings
 * (length 0xFFFFFFFF is NULL), then BATON_MSG_DONE.
 */
#define BATON_MSG_ROW 50
#define BATON_MSG_DONE 51
#define BATON_QUERY_SESSIONS 1
#define BATON_QUERY_BACKENDS 2
#define BATON_QUERY_POOLS 3
#define BATON_QUERY_DISPATCHERS 4
#define BATON_QUERY_POOL_SETTINGS 8
#define BATON_QUERY_TENANTS 9
#define BATON_QUERY_STATISTICS 13
#define BATON_QUERY_RESET_STATISTICS 14 /* no rows */

/*
 * For the monitor. SESSION_COUNTS: user, database, state, cause, number of
 * sessions; several rows may have the same names. SESSIONS_AT_WORK: see
 * Scheduler::at_work_row(). NAMED_STATISTICS: as STATISTICS, with names in
 * place of OIDs. DATABASE_TIMES: see Scheduler::times_row().
 */
#define BATON_QUERY_SESSION_COUNTS 15
#define BATON_QUERY_NAMED_STATISTICS 16
#define BATON_QUERY_DATABASE_TIMES 17
#define BATON_QUERY_SESSIONS_AT_WORK 18

/*
 * The pool must leave a database (database_access.c). Followed by: u8 forced
 * (1: its sessions are ended, too), u32 the database's OID; the frame's
 * session is the one that asks, 0 if none. The answer is one ROW per role that
 * has sessions there, without columns: u32 the role's OID, u32 sessions. The
 * database is held while the connection is open; the same frame may be sent
 * again.
 */
#define BATON_QUERY_LEAVE_DATABASE 5

/*
 * Sessions are paused (pause.c). Followed by: u32 the role's OID and u32 the
 * database's (0: any), u32 the OID of the role that pauses, u64 for how many
 * microseconds the statement waits, u64 for how many the pause lasts; the
 * frame's session is the one that asks, 0 if none. The answer has rows without
 * columns: u32 BATON_PAUSE_*, u64 value. Without rows, nothing is in the way
 * and the pause stands, whatever becomes of the connection. Otherwise it ends
 * with the connection; the same frame asks again.
 */
#define BATON_QUERY_PAUSE 10
#define BATON_PAUSE_SESSIONS 1	/* so many sessions are in the way */
#define BATON_PAUSE_SESSION 2	/* one of them: the session id */
#define BATON_PAUSE_ENDED 3		/* the pause has been ended meanwhile, or
								 * could not begin */

/*
 * Pauses end. Followed by: u32 the role's OID and u32 the database's (0: any).
 * One row without columns: u32 0, u64 the number of pauses.
 */
#define BATON_QUERY_RESUME 11
#define BATON_QUERY_PAUSES 12	/* rows with columns, as for a view */

/*
 * The session in the frame shall be cancelled, or terminated, if no backend
 * holds it; otherwise the backend is signalled. No rows.
 */
#define BATON_QUERY_CANCEL 6
#define BATON_QUERY_TERMINATE 7

#endif							/* BATON_MESSAGES_H */
