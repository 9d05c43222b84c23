/*-------------------------------------------------------------------------
 *
 * pooled_state.h
 *		The state of a pooled backend, grouped by lifetime.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_POOLED_STATE_H
#define BATON_POOLED_STATE_H

#include <arpa/inet.h>
#include <signal.h>
#include <time.h>

#include "lib/ilist.h"
#include "lib/stringinfo.h"
#include "utils/hsearch.h"

#include "dispatcher_link.h"
#include "pg_process.h"

/* ----------------------------------------------------------------
 *		The state of a pooled backend, grouped by lifetime.
 *
 * - BatonServed: state of the session in place. All of it goes at each
 *   hand-over: forget_served() (handover.c) assigns the whole struct, so a new
 *   member cannot be left out, and none can reach the next session.
 * - BatonPlaced: the part of a session's context that stands in the server's
 *   own variables, as this process knows it. It stays when the session leaves,
 *   as the variables do, and is true at any time: the code that puts another
 *   session in place compares with it and replaces what differs (context.c has
 *   the order). Clearing it without the variables would give the next session
 *   the last session's values.
 * - BatonSelf: state of the backend itself, whatever session it serves.
 *
 * Other file-scope variables carry nothing of a session. They are constant
 * once found, or caches whose keys contain all that their content depends on,
 * or buffers that are filled before each read, or are cleared at the end of
 * the transaction or statement. ../STATICS lists each with its reason;
 * tools/check-statics, a part of make lint, compares.
 * ----------------------------------------------------------------
 */

struct CachedPlanSource;
struct HeldStatement;
struct held_hash;
struct MemoryContextData;
struct WaitEventSet;

/* ---- the session in place ---------------------------------------------- */

/* The client's input (held_client.c, client_input.c). */
typedef struct BatonServedInput
{
	bool		just_taken;		/* its client has sent something that the
								 * backend has not looked at yet */
	bool		installed;		/* put in place since its client last sent */
	bool		is_whole;		/* its present input was seen to its end */
	bool		is_timed;		/* its input is not whole, and is timed */
	uint32		until_timeout;	/* statement_timeout had passed when this many
								 * messages, not answered yet, had come */
	Size		peeked_length;	/* bytes that the last peek saw */

	/* a message that is dropped as it arrives */
	Size		head_length;	/* bytes of its head; 0: there is none */
	char		head[5];
	int			body_left;		/* if the head is whole */
} BatonServedInput;

/* The message that the client is sending, if it is timed (client_input.c). */
typedef struct BatonServedMessage
{
	bool		is_timed;
	bool		by_us;			/* this library drops it as it arrives */
	bool		begins;			/* `received` is not known yet */
	uint64		received;		/* as it was one period ago */
} BatonServedMessage;

/*
 * Cancel requests for the session (identity.c); signal handlers use them, too.
 */
typedef struct BatonServedCancel
{
	volatile sig_atomic_t armed;	/* cancels the next command that runs */
	volatile sig_atomic_t has_spoken;	/* it came with a request, of which
										 * nothing has begun to run */
	volatile sig_atomic_t held_back;	/* a cancel of that request came */
} BatonServedCancel;

/*
 * What the session did to its statements since it came or was captured
 * (statement_tracking.c).
 */
typedef struct BatonServedNotice
{
	bool		discards_plans; /* by DISCARD, or session_replication_role */
	bool		invalidates;	/* has done what may invalidate plans */
} BatonServedNotice;

typedef struct BatonServedSession
{
	uint64		session;		/* 0: none */
	Oid			role;			/* the required authenticated user */
	BatonTenantSlot *tenant;	/* NULL if no session is served */
	uint32		cause;			/* BATON_CAUSE_*, as last told to the
								 * dispatcher */
	int64		pinned_since_us;	/* since when it has had a cause */
	bool		pin_is_logged;
	bool		greeted_here;
	bool		client_lost;	/* its client reads no more; handled at the
								 * boundary of the running command */
	bool		delta_too_large;	/* a change was too large to be collected
									 * (delta.c) */
	int64		request_since_us;	/* of CLOCK_MONOTONIC: when its present
									 * request came; 0: it asks for nothing */
	int64		transaction_since_us;	/* likewise, its present transaction */
	BatonServedInput input;
	BatonServedMessage message;
	BatonServedCancel cancel;
	BatonServedNotice notice;
} BatonServedSession;

/* ---- what has been put in place ---------------------------------------- */

/* The context as a whole (context.c). */
typedef struct BatonPlacedContext
{
	uint64		session;		/* its session, 0: none */
	uint64		version;		/* number of exactly this context; 0: unknown,
								 * because the session has changed it here and
								 * the dispatcher has renumbered it */
	uint64		moves;			/* how often its session had come from another
								 * backend, when it came last */
} BatonPlacedContext;

/*
 * The client that MyProcPort and pg_stat_activity show (identity.c,
 * client_socket.c).
 */
typedef struct BatonPlacedIdentity
{
	bool		shows_no_session;	/* shows no session */
	bool		is_relayed;		/* the dispatcher relays its TLS */
	uint16		family;			/* family of the address in address_text */
	uint8		address[16];
	char		address_text[INET6_ADDRSTRLEN];
	char		remote_port[16];
	uint64		authenticated;	/* serial of the entry that the text comes
								 * from; 0: none */
	char	   *authenticated_as;	/* method:identity, NULL if the client had
									 * to prove nothing;
									 * MyClientConnectionInfo points into it */
} BatonPlacedIdentity;

/* Parameters that were SET (context_params.c). */
typedef struct BatonPlacedParams
{
	dlist_head	list;			/* of BatonParam */
	int			count;
} BatonPlacedParams;

/* Reset values (reset_values.c). */
typedef struct BatonPlacedResets
{
	dlist_head	items;			/* of BatonResetItem, one per parameter */
	uint64	   *serials;		/* the serials that the last install wanted,
								 * in order */
	int			count;			/* number of serials; -1: unknown */
	int			size;
	bool		reload_again;	/* a record lacked the value of its file: the
								 * files must be read again */
} BatonPlacedResets;

/* The parameter values that the client was told (delta.c). */
typedef struct BatonPlacedReports
{
	StringInfoData told;
	uint64		told_serial;	/* the entry with the same contents; 0:
								 * unknown */
	bool		sent;			/* a ParameterStatus was sent since `told` was
								 * made */
	bool		news;			/* the client has not been told everything */
	bool		withheld;		/* a ParameterStatus was discarded */
} BatonPlacedReports;

/* Sequence values, as the dispatcher has them (context_objects.c). */
typedef struct BatonPlacedSequences
{
	HTAB	   *known;
	Oid			last_used;
} BatonPlacedSequences;

/*
 * The session whose named statements are in place, and the versions that they
 * are of.
 */
typedef struct BatonPlacedStatements
{
	uint64		session;
	uint64		context_version;	/* 0: unknown */
	uint32		counter_version;
} BatonPlacedStatements;

/*
 * The named statements that were looked up, and so are in the table
 * (session_statements.c).
 */
typedef struct BatonPlacedHeld
{
	struct MemoryContextData *memory;	/* freed when the statements are taken
										 * out */
	dlist_head	list;			/* of HeldStatement */
	struct held_hash *map;		/* the list by name */
	struct HeldStatement *last; /* the last one looked up; NULL: none */
	int			fresh;			/* upper bound of the held statements of this
								 * epoch */
	int			spared;			/* upper bound of the statements whose plans
								 * are spared (session_statements.c) */
	uint32		sweep_from;		/* number of names from which some may go */

	/* the session's own list */
	uint64		session;		/* its session, now or last */
	bool		is_open;		/* until the session has ended */
	const BatonItem *items;
	uint32		statement_count;
} BatonPlacedHeld;

/* What analysis and plans depend on (statement_environment.c). */
typedef struct BatonPlacedEnvironment
{
	uint64		epoch;			/* equal as long as the environment is: raised
								 * before the environment may change, after
								 * baton_held_settle(); 0 while changes cannot
								 * be detected */
	uint64		last_epoch;
	bool		has_changed;	/* since the session was put in place */
	bool		is_volatile;
	uint64		installed_version;
	Oid			epoch_user;		/* the user of the epoch; invalid: not seen
								 * yet */
} BatonPlacedEnvironment;

/* The unnamed statement (unnamed_statement.c). */
typedef struct BatonPlacedUnnamed
{
	struct CachedPlanSource *plan;	/* of this backend, NULL if it has none */
	uint64		owner;			/* the session that it belongs to */
	uint64		serial;			/* the entry that it equals, 0: unknown */
	bool		captured;		/* the owner's context contains it */
	bool		is_put_off;		/* the plan is an empty one, which is replaced
								 * by the owner's on demand */

	/* of the session that was installed last */
	uint64		session;
	bool		put_since;		/* the context has received one since the
								 * session came, which its record does not
								 * show */
	bool		fill_next;		/* the next unnamed ParseComplete answers the
								 * injected empty Parse */
	bool		is_empty;		/* that has happened, and the plan is still
								 * the empty one */
	bool		put_off_next;	/* the empty one may stay for now */
} BatonPlacedUnnamed;

/*
 * What may tie the session to this process (dedicated/). The hooks of
 * taint_watch.c note it at any time. taint.c looks before a session leaves; no
 * session leaves while there is a tie. taint.c clears what it has looked up.
 * After the end of a session it removes what the session has left, and clears
 * all.
 */
typedef struct BatonPlacedTies
{
	/* facts that stay true until the backend is cleaned, or permanently */
	bool		loaded;			/* LOAD has loaded a library */
	bool		listed_object;	/* a listed function has been called */
	bool		listed_parameter;	/* a listed parameter has been set */
	bool		seeded;			/* setseed() or SET seed */

	/* events after which something must be looked up */
	bool		load_tried;		/* LOAD; a failed one may have loaded the
								 * library before its _PG_init failed */
	bool		listening_changed;	/* LISTEN, UNLISTEN or DISCARD ALL */
	bool		slots_changed;	/* a replication slot created or dropped */
	bool		objects_made;	/* a committed transaction has made objects
								 * and not dropped all of them again */
	bool		objects_dropped;	/* a committed transaction has dropped
									 * other objects */
	bool		temporary_used; /* a committed transaction touched the
								 * temporary namespace */

	/* results of a lookup, valid until another event is noted */
	bool		listening;
	bool		has_temporary_slot;
	bool		has_temporary_objects;

	unsigned long long loads_before;	/* libraries that were loaded before
										 * the first attempted LOAD */
} BatonPlacedTies;

/* Counters of pgstat.c that have not been reported (views.c). */
typedef struct BatonPlacedStatistics
{
	uint64		session;		/* the session that they all belong to; 0:
								 * there are none; PG_UINT64_MAX: of several */
	int64		reported_at;	/* when a report was made for a session that
								 * came */
	uint64		pause;			/* microseconds added to the least time
								 * between reports */
	uint32		looks;			/* sessions seen since then, among others'
								 * counters */
	int			wanted;			/* hand-overs that report, because a session
								 * has asked */
} BatonPlacedStatistics;

typedef struct BatonPlacedState
{
	BatonPlacedContext context;
	BatonPlacedIdentity identity;
	BatonPlacedParams params;
	BatonPlacedResets resets;
	BatonPlacedReports reports;
	BatonPlacedSequences sequences;
	bool		has_temporary_namespace;	/* context_objects.c */
	BatonPlacedStatements statements;
	BatonPlacedHeld held;
	BatonPlacedEnvironment environment;
	BatonPlacedUnnamed unnamed;
	BatonPlacedTies ties;
	BatonPlacedStatistics statistics;
} BatonPlacedState;

/* ---- the backend itself ------------------------------------------------- */

/* The exchange with the client in place (boundary.c). */
typedef struct BatonSelfBoundary
{
	void		(*attach) (void);	/* called at the first boundary (attach.c) */
	bool		attached;
	bool		in_boundary;	/* what is sent now comes from the boundary */
	bool		injecting;		/* injected messages run: the client must not
								 * see the answers */
	bool		ready_sent;		/* a 'Z' was sent since the last flush */
	char		ready_status;	/* its status */
	bool		batch_begun;	/* more than CloseComplete was sent since the
								 * last 'Z' */
	bool		exits_on_error; /* the session's own value, while all errors
								 * are FATAL */
	size_t		unflushed;		/* upper bound of the bytes sent since the
								 * last flush */
} BatonSelfBoundary;

/* Descriptors, and what waits for them (client_socket.c). */
typedef struct BatonSelfSockets
{
	int			placeholder;	/* in place between sessions */
	int			placeholder_peer;	/* kept open, as the placeholder would
									 * read EOF otherwise */
	int			inject_read;	/* injected messages are read from here */
	int			inject_write;
	int			kept_client;	/* the client's socket during an injection */
	bool		occupied;		/* another socket than the placeholder is in
								 * place */
	bool		remade;			/* wait sets are rebuilt for each socket */
	BatonWatcher command_watcher;	/* FeBeWaitSet's; until attach that is
									 * stock's own, which watches */
	BatonWatcher idle_watcher;
	struct WaitEventSet *idle_set;
} BatonSelfSockets;

/* The backend's memory (handover.c). */
typedef struct BatonSelfMemory
{
	uint64		uses;			/* counts uses of the caches: a later use has
								 * a greater number */
	uint64		looked_uses;	/* as of the last look */
	int64		looked_ms;
	int64		began_ms;
	Size		first_resident; /* as of attach */
	Size		first_contexts;
	bool		used_since_look;
} BatonSelfMemory;

typedef struct BatonSelfState
{
	/* filled at attach */
	uint32		slot_index;
	BatonBackendSlot *slot;
	BatonPoolSlot *pool;
	BatonTallySlot *tally;
	int			control;		/* control socket; -1 if the dispatcher has
								 * gone */
	int			queue;			/* the pool's ready queue, read end */
	int			epolls[BATON_SESSION_THREADS_MAX];	/* the dispatcher's, in
													 * which sessions are
													 * armed */
	int			epoll_count;
	int			client_number;	/* descriptor number of the client's socket */

	uint64		in_hand;		/* a session that was received and is not in
								 * place yet (handover.c) */
	bool		notes_ties;		/* attached: the hooks of taint_watch.c note
								 * what they see; otherwise they do nothing */
	bool		retire_wanted;	/* the backend ends as soon as it holds no
								 * session (idle.c) */
	bool		serves_roles;	/* can serve any role (identity.c) */
	bool		is_apart;		/* its pool belongs to one role */
	uint32		starts;			/* its slot's counter, as of its start */
	uint64		start_settings; /* hash of the settings of role and database
								 * that it has only from its start
								 * (session_start.c) */
	volatile sig_atomic_t holds_cancels;	/* in the boundary, or in injected
											 * messages: nothing of the
											 * client's runs (identity.c) */
	volatile sig_atomic_t writes_in_boundary;	/* may wait for the client of
												 * the session in place */
	timer_t		cancel_timer;	/* looks again at a cancel that is kept */
	bool		has_cancel_timer;
	BatonSelfBoundary boundary;
	BatonSelfSockets sockets;
	BatonSelfMemory memory;
} BatonSelfState;

#define BATON_HIDDEN __attribute__((visibility("hidden")))

extern BATON_HIDDEN BatonServedSession BatonServed;
extern BATON_HIDDEN BatonPlacedState BatonPlaced;
extern BATON_HIDDEN BatonSelfState BatonSelf;

/* The session this backend holds; 0 if none, and in any other process. */
static inline uint64
baton_session_held(void)
{
	return BatonServed.session;
}

/*
 * Do limits depend on the session being given back as soon as possible
 * (is_counted)?
 */
static inline bool
baton_session_is_counted(void)
{
	return unlikely(pg_atomic_read_u32((pg_atomic_uint32 *) &BatonServed.tenant->is_counted) != 0);
}

/*
 * Must the next request of the session, which keeps this backend, wait? After
 * a pause began, and before the session's state in its slot is shown as idle,
 * or waiting, the dispatcher takes it that this is looked at (pause.rs).
 */
static inline bool
baton_session_is_paused(uint32 flags)
{
	return unlikely(pg_atomic_read_u32((pg_atomic_uint32 *) &BatonServed.tenant->is_paused) != 0) &&
		(flags & BATON_SESSION_EXEMPT) == 0;
}

/*
 * May the session have temporary objects that outlive a transaction? This is
 * not looked up while another cause dedicates the session.
 */
extern bool baton_may_have_temporary_objects(void);

/* ----------------------------------------------------------------
 *		The backend's own transactions.
 * ----------------------------------------------------------------
 */

/*
 * Starts a transaction with ordinary snapshots, whatever default_transaction_*
 * are. A serializable, read-only, deferrable transaction waits for others to
 * end, and a standby has none.
 */
extern void baton_own_transaction_start(void);

#endif							/* BATON_POOLED_STATE_H */
