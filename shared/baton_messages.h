/*-------------------------------------------------------------------------
 *
 * baton_messages.h
 *		The messages between dispatcher, backends and launcher.
 *
 * Part of baton_shared.h, which says what holds of all of it.
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
 * Frame = BatonFrameHeader, then `length` bytes.  Strings within a payload are
 * u32 length + bytes; there is no alignment inside payloads.
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

#define BATON_FRAME_MORE 1		/* the payload goes on in the next frame of
								 * the same kind and session */

/* anyone -> dispatcher, first message on a control connection */
#define BATON_MSG_HELLO_BACKEND 1	/* u32 layout_version, u32 slot, u64
									 * attach_token, u32 pid, u32 role_oid,
									 * u32 database_oid: for whom it was
									 * opened, and where */
#define BATON_MSG_HELLO_LAUNCHER 2	/* u32 layout_version, u64 secret, u32 pid */
#define BATON_MSG_HELLO_QUERY 3 /* u32 layout_version, u64 secret, u32 what
								 * (BATON_QUERY_*), then see there */
#define BATON_MSG_HELLO_TICKET 4	/* u32 layout_version, u64 ticket, u32
									 * pid: a starting backend asks for the
									 * client of that ticket.  The connection
									 * stays open as long as the backend */

/* dispatcher -> backend */
#define BATON_MSG_WELCOME 10	/* u32 layout_version, u32 client_fd_number,
								 * u64 arena size; descriptors: ready queue
								 * (read end), arena, and the epolls of
								 * sessions (BATON_SESSION_THREADS_MAX at
								 * most): a session's is that of its index,
								 * modulo their number */
#define BATON_MSG_REFUSED 11	/* string: why; the backend exits with it */
#define BATON_MSG_ASSIGN 12		/* session; descriptor: the client's socket.
								 * The same frame is what the ready queue
								 * carries */
#define BATON_MSG_POKE 13		/* look at the ready queue again */
#define BATON_MSG_RETIRE 14		/* look at `retire` in your slot */
#define BATON_MSG_RECALL 15		/* session: give it back if it is idle */
#define BATON_MSG_EVICT 16		/* session: end it if it is idle and
								 * dedicated; there are too many such */

#define BATON_MSG_CLIENT 17		/* descriptor: the client's socket.  u32
								 * BATON_TICKET_*, u16 family, u16 port, u32
								 * scope, u8[16] address, u16 local port,
								 * u8[16] local address, u8 secure (1: by TLS,
								 * whose other end a relay has), u8
								 * has_certificate (1: it was checked), string
								 * common_name, string distinguished_name, u32
								 * length and the server's certificate that
								 * the client was shown (DER; empty: none),
								 * u32 bits, string version, string cipher,
								 * string client_dn, string client_serial,
								 * string issuer_dn: as BatonTls has them */
#define BATON_MSG_NATIVE_ANSWER 18	/* string: why there may be no such
									 * session (53300), "" if it is welcome;
									 * string: detail */

#define BATON_MSG_END_IDLE 19	/* session: end it if it has been idle in its
								 * transaction since then, i64 state_since_us
								 * (pg_baton.extra_idle_timeout) */

#define BATON_TICKET_NATIVE 0	/* an ordinary connection for life */
#define BATON_TICKET_LOGIN 1	/* authenticate it, say so, and exit */
#define BATON_TICKET_GSS 2		/* begin GSSAPI encryption, read its startup
								 * packet and tell it (STARTUP); then as
								 * BATON_TICKET_NATIVE */

/* backend -> dispatcher */
#define BATON_MSG_PUT 20		/* session; u16 kind, u16 key_length, key, u32
								 * counter use, i64 aux; if counter use is 1 a
								 * BatonStatementCounter, to be kept in a slot
								 * allotted to the item; value: what remains.
								 * It puts or replaces an item, and takes
								 * effect at the next RELEASE, GREETED or KEEP */
#define BATON_MSG_DELETE 21		/* session; u16 kind, u16 key_length, key */
#define BATON_MSG_RELEASE 22	/* session given back; the DISPATCHER re-arms
								 * its socket.  Follows PUT/DELETE.  (A
								 * backend with nothing to tell re-arms the
								 * socket itself and sends nothing, unless it
								 * has greeted the session: see
								 * baton_session_release) */
#define BATON_MSG_GREETED 23	/* session; u32 BATON_GREETING_*; u64
								 * start_settings, for its record; u32 length,
								 * so many bytes of NoticeResponses, REPORTED
								 * value, as above: what was sent.  The
								 * backend keeps the session */
#define BATON_MSG_END 24		/* session has ended (client gone or FATAL);
								 * payload: u32 BATON_END_*.  The dispatcher
								 * closes its socket and forgets it */
#define BATON_MSG_DEDICATED 25	/* session; u32 cause (BATON_CAUSE_*); 0 means
								 * shared again */
#define BATON_MSG_RETIRING 26	/* u32 BATON_RETIRES_*, string: why; nothing
								 * more may be assigned */

#define BATON_MSG_AUTHENTICATED 27	/* BATON_TICKET_LOGIN: the server has let
									 * the client in.  u8 gss (1: by GSSAPI),
									 * string its principal, u8 whether it had
									 * to prove anything, string how (from 16
									 * on), string as whom */

#define BATON_MSG_NATIVE_IN 28	/* BATON_TICKET_NATIVE, _GSS: the server has
								 * let the client in.  u32 role_oid, u8
								 * superuser */
#define BATON_MSG_STARTUP 29	/* BATON_TICKET_GSS: the client's startup
								 * packet, or cancel request, as it was within
								 * the encryption, without its length */
#define BATON_MSG_AWAITS_CLIENT 35	/* until the server has let the client in:
									 * u8: the client has been asked and owes
									 * the answer (1), or has given it (0) */

/* For how long others of the session's kind may be told the same. */
#define BATON_GREETING_NEVER 0
#define BATON_GREETING_ALWAYS 1 /* while login_generation and settings stay */
#define BATON_GREETING_NAMES 2	/* and names_generation */
#define BATON_GREETING_OF_ROLES 4	/* or-ed in: other roles were looked up */
#define BATON_GREETING_BY_PRIVILEGES 8	/* or-ed in: a startup option is not
										 * every role's to set */

#define BATON_RETIRES_ASKED 0	/* it was asked to */
#define BATON_RETIRES_UNCLEAN 1 /* what a session left cannot be cleaned */
#define BATON_RETIRES_SETTINGS 2	/* a session needs one that has been
									 * started after settings changed */

#define BATON_END_CLIENT_CLOSED 1
#define BATON_END_CLIENT_TERMINATED 2	/* 'X' */
#define BATON_END_ERROR 3

/* launcher -> dispatcher */
#define BATON_MSG_PARAMETERS 30 /* u32 count, then pairs of strings: the whole
								 * configuration, at start and at each reload */
#define BATON_MSG_LOGIN_ANSWER 31	/* see login.c and link/wire.rs */
#define BATON_MSG_SHUTDOWN 32	/* u32: the server is stopping */
#define BATON_MSG_POOL_SETTINGS 33	/* u32 role, u32 database, then for each
									 * of pool_settings.inc: i32 value (kB of
									 * memory, BATON_MODE_*), u32
									 * BATON_SOURCE_* */

#define BATON_MSG_PASSPHRASE 34 /* of the server's key, all of the frame:
								 * comes before the PARAMETERS that have the
								 * key loaded, if there is one */

/* where a pool's setting comes from, by pg_settings' words; the last one counts */
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
#define BATON_MSG_LOGIN_QUESTION 40
#define BATON_MSG_POOL_QUESTION 41	/* u32 role, u32 database; answered by
									 * POOL_SETTINGS */

/*
 * LOGIN_QUESTION: u32 request, u8 connection (0 local, 1 host), u8 address
 *	family (as peer_family, low byte), u8[16] address, u16 port, string user,
 *	string database, string os_user ("" if not known; the peer's user name on
 *	a Unix socket), u8 secure (1: by TLS), u8 has_ca (1: its certificate would
 *	have been checked), u8 has_certificate (1: it was), string common_name,
 *	string distinguished_name (RFC 2253)
 * LOGIN_ANSWER: u32 request, u32 method (BATON_AUTH_*), string method_name,
 *	string verifier (rolpassword; "" if there is none), u8 password_expired,
 *	u32 role_oid, u32 database_oid, u8 superuser, i32 role_limit,
 *	i32 database_limit (-1: none), i32 role_backends (the server's own count
 *	of connections of that role that are no pool backends), i32
 *	database_backends, string refusal_sqlstate ("" if welcome), string
 *	refusal_message, string refusal_detail, string refusal_hint,
 *	u8 refuse_before_authentication (1: send the refusal at once, as for
 *	reject and no matching line; 0: only after the client has proved itself;
 *	2: then, in place of AuthenticationOk; 3: as 1, unless a backend
 *	authenticates it, which refuses it itself),
 *	string peer_role_match ("" or "1": for peer, whether os_user may log in),
 *	i64 good_until (TimestampTz: up to then the same question gets the same
 *	answer, request and counts of connections apart, unless login_generation
 *	is raised; 0: never again),
 *	u8 ask_backend (1: whether the role may connect to the database only a
 *	backend there can say, which greets the session itself then; 2: one has to
 *	greet it, for there are login triggers), u8 native (BATON_NATIVE_*),
 *	i32 pool_max_sessions of its role and database (-1: none), u8 is_apart (1:
 *	backends that serve this role can serve no other), u8 concerns
 *	(which login changes concern the answer beside those of its hashes, or-ed:
 *	1: of any role, 2: of any database, 4: of memberships), u32 role_hash (the
 *	AUTHNAME hash of the user's name, whether there is such a role or not),
 *	u32 database_hash (the DATABASEOID hash)
 */
#define BATON_CONCERNS_ANY_ROLE 1
#define BATON_CONCERNS_ANY_DATABASE 2
#define BATON_CONCERNS_MEMBERSHIPS 4
#define BATON_NATIVE_NOT 0
#define BATON_NATIVE_POOL_MODE 1
#define BATON_NATIVE_FAILED_CHECK 2 /* no backend of the pool can be opened:
									 * pg_hba.c does not work */
#define BATON_NATIVE_DELEGATION 3	/* its credentials go to one process */

#define BATON_AUTH_TRUST 1
#define BATON_AUTH_REJECT 2
#define BATON_AUTH_SCRAM 3
#define BATON_AUTH_MD5 4
#define BATON_AUTH_PASSWORD 5
#define BATON_AUTH_PEER 6
#define BATON_AUTH_BY_SERVER 7	/* a backend does it, on the client's socket */

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

/*
 * The pool shall leave a database (database_access.c).  Follows: u8 forced (1:
 * its sessions are ended, too), u32 the database's OID; the frame's session is
 * the one that asks, 0 if none.  A ROW a role that has sessions there, without
 * columns: u32 the role's OID, u32 sessions.  The connection stays open, and the
 * database is held as long; the same frame may be sent again.
 */
#define BATON_QUERY_LEAVE_DATABASE 5

/*
 * The session that the frame names shall be cancelled, or ended, if no backend
 * holds it; a backend that does is signalled.  No rows.
 */
#define BATON_QUERY_CANCEL 6
#define BATON_QUERY_TERMINATE 7

#endif							/* BATON_MESSAGES_H */
