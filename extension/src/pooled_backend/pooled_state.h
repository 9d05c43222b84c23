/*-------------------------------------------------------------------------
 *
 * pooled_state.h
 *		What a pooled backend remembers, by how long it counts.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_POOLED_STATE_H
#define BATON_POOLED_STATE_H

#include <arpa/inet.h>
#include <signal.h>

#include "lib/ilist.h"
#include "lib/stringinfo.h"
#include "utils/hsearch.h"

#include "dispatcher_link.h"
#include "pg_process.h"

/* ----------------------------------------------------------------
 *		What a pooled backend remembers, by how long it counts.
 *
 *	- BatonServed: of the session in place.  Whatever is here goes at each
 *	  hand-over, all at once: forget_served() (handover.c) assigns the whole
 *	  struct, so a member that is added cannot be forgotten, and none can reach the next
 *	  session.
 *	- BatonPlaced: what of a session's context stands in the server's own
 *	  variables, as this process knows it.  It stays when the session leaves,
 *	  as the variables do, and is true at any time: whoever puts another
 *	  session in place compares with it, and replaces what is another's
 *	  (context.c has the order).  Cleared without the variables it would be a
 *	  lie, and the next session would have the last one's.
 *	- BatonSelf: of the backend itself, whomever it serves.
 *
 * File-scope variables besides these are such that no session can be told from
 * them: found once and constant from then on, caches whose keys say all that
 * their content depends on, buffers that are filled anew before they are read,
 * and what a transaction or statement clears as it ends.  ../STATICS lists each
 * with its reason, and tools/check-statics, a part of make lint, compares.
 * ----------------------------------------------------------------
 */

struct CachedPlanSource;
struct HeldStatement;
struct held_hash;
struct MemoryContextData;
struct WaitEventSet;

/* ---- the session in place ---------------------------------------------- */

/* What its client says (held_client.c, client_input.c). */
typedef struct BatonServedInput
{
	bool		just_taken;		/* it came to speak, and has not been listened
								 * to yet */
	bool		installed;		/* it was put in place since it last spoke */
	bool		is_whole;		/* what it says now was seen to its end */
	bool		is_timed;		/* it was seen not to be whole, and shall not
								 * take for ever */
	uint32		until_timeout;	/* statement_timeout was over when so many
								 * messages, not answered yet, had come */
	Size		peeked_length;	/* how much the last look saw */
} BatonServedInput;

/* The message it is sending, if that is timed (client_input.c). */
typedef struct BatonServedMessage
{
	bool		is_timed;
	bool		by_us;			/* it is read by us, to be ignored */
	bool		begins;			/* `received` is not known yet */
	uint64		received;		/* as it was a period ago */
} BatonServedMessage;

/* Cancels that mean it (identity.c); a signal handler's, too. */
typedef struct BatonServedCancel
{
	bool		armed;			/* fires when the next thing runs */
	volatile sig_atomic_t has_spoken;	/* it came with a request, of which
										 * nothing has begun to run */
	volatile sig_atomic_t held_back;	/* one came that means what it asked */
} BatonServedCancel;

/* What it did to its statements, since it came or was captured (statement_tracking.c). */
typedef struct BatonServedNotice
{
	bool		discards_plans; /* by DISCARD, or session_replication_role */
	bool		invalidates;	/* has done what may make plans invalid */
} BatonServedNotice;

typedef struct BatonServedSession
{
	uint64		session;		/* 0: nobody is served */
	Oid			role;			/* the authenticated user that it must have */
	BatonTenantSlot *tenant;	/* NULL if nobody is served */
	uint32		cause;			/* BATON_CAUSE_*, as the dispatcher was last
								 * told */
	bool		greeted_here;
	bool		client_lost;	/* its client reads no more; seen to at the
								 * boundary of the command that runs */
	bool		delta_too_large;	/* a change was too large to be collected
									 * (delta.c) */
	BatonServedInput input;
	BatonServedMessage message;
	BatonServedCancel cancel;
	BatonServedNotice notice;
} BatonServedSession;

/* ---- what has been put in place ---------------------------------------- */

/* The context as a whole (context.c). */
typedef struct BatonPlacedContext
{
	uint64		session;		/* whose it is, 0 for none */
	uint64		version;		/* the number of exactly that context; 0: not
								 * known (the session has changed it here and
								 * the dispatcher has numbered it since) */
} BatonPlacedContext;

/* Whose client MyProcPort and pg_stat_activity show (identity.c, client_socket.c). */
typedef struct BatonPlacedIdentity
{
	bool		is_nobody;		/* no session's */
	bool		is_relayed;		/* the dispatcher relays its TLS */
	uint16		family;			/* of the address that address_text is of */
	uint8		address[16];
	char		address_text[INET6_ADDRSTRLEN];
	char		remote_port[16];
	uint64		authenticated;	/* serial of the entry that the text is made
								 * of; 0 for none */
	char	   *authenticated_as;	/* method:identity, NULL if nobody had to
									 * prove anything; MyClientConnectionInfo
									 * points into it */
} BatonPlacedIdentity;

/* Parameters that were SET (context_params.c). */
typedef struct BatonPlacedParams
{
	dlist_head	list;			/* of BatonParam */
	int			count;
} BatonPlacedParams;

/* Reset values (reset_values.c, reset_values.c). */
typedef struct BatonPlacedResets
{
	dlist_head	items;			/* of BatonResetItem, one a parameter */
	uint64	   *serials;		/* that the last install wanted, in order */
	int			count;			/* of them; -1: unknown */
	int			size;
	bool		reload_again;	/* a record has come without its file's value:
								 * the files must be read again */
} BatonPlacedResets;

/* What the client was told of parameters (delta.c). */
typedef struct BatonPlacedReports
{
	StringInfoData told;
	uint64		told_serial;	/* the entry that says the same; 0: none known */
	bool		sent;			/* a ParameterStatus since told was made */
	bool		news;			/* the client has not been told all */
	bool		withheld;		/* a ParameterStatus was thrown away */
} BatonPlacedReports;

/* Values of sequences, as the dispatcher has them (context_objects.c). */
typedef struct BatonPlacedSequences
{
	HTAB	   *known;
	Oid			last_used;
} BatonPlacedSequences;

/* Whose named statements are in place, and as which versions have them. */
typedef struct BatonPlacedStatements
{
	uint64		session;
	uint64		context_version;	/* 0: not known */
	uint32		counter_version;
} BatonPlacedStatements;

/* Those of them that were looked up, and so are in the table (session_statements.c). */
typedef struct BatonPlacedHeld
{
	struct MemoryContextData *memory;	/* freed when they are taken out */
	dlist_head	list;			/* of HeldStatement */
	struct held_hash *map;		/* of them, by name */
	struct HeldStatement *last; /* the one looked up last; NULL: none */
	int			fresh;			/* held statements of this epoch, at most */
	int			spared;			/* statements whose plans are spared, at most
								 * (session_statements.c) */
	uint32		sweep_from;		/* with so many names, some may go */

	/* the session's own list */
	uint64		session;		/* whose it is, or was last */
	bool		is_open;		/* until it has ended */
	const BatonItem *items;
	uint32		statement_count;
} BatonPlacedHeld;

/* What analysis and plans depend on (statement_environment.c). */
typedef struct BatonPlacedEnvironment
{
	uint64		epoch;			/* as long as it is the same, so is the
								 * environment: raised before that may change,
								 * after baton_held_settle(); 0 while nothing
								 * tells when it changes */
	uint64		last_epoch;
	bool		has_changed;	/* since the session was put in place */
	bool		is_volatile;
	uint64		installed_version;
	Oid			epoch_user;		/* whose the epoch is; invalid: not seen yet */
} BatonPlacedEnvironment;

/* The unnamed statement (unnamed_statement.c). */
typedef struct BatonPlacedUnnamed
{
	struct CachedPlanSource *plan;	/* of this backend, NULL if it has none */
	uint64		owner;			/* the session whose it is */
	uint64		serial;			/* the entry it is equal to, 0: not known */
	bool		captured;		/* the owner's context has it */
	bool		is_put_off;		/* the plan is an empty one: it is turned into
								 * the owner's when that is asked for */

	/* of the session that was installed last */
	uint64		session;
	bool		put_since;		/* the context has been told of one since it
								 * came: its record does not say */
	bool		fill_next;		/* the next unnamed ParseComplete answers the
								 * empty Parse that was injected */
	bool		is_empty;		/* it has, and the plan is still that one */
	bool		put_off_next;	/* and it may stay that one for now */
} BatonPlacedUnnamed;

/*
 * What may tie the session to this process (dedicated/).  Noted by the hooks of
 * taint_watch.c, at any time; taint.c looks before a session leaves, which none
 * does while there is any, and clears what it has looked up; taint.c takes
 * away what a session has left that ended, and clears all.
 */
typedef struct BatonPlacedTies
{
	/* facts that stay true until the backend is cleaned, or for ever */
	bool		loaded;			/* LOAD has brought a library in */
	bool		listed_object;	/* a listed function has been called */
	bool		listed_parameter;	/* a listed parameter has been set */
	bool		seeded;			/* setseed() or SET seed */

	/* events after which something must be looked up */
	bool		load_tried;		/* LOAD; one that failed may have brought the
								 * library in before (its _PG_init failed) */
	bool		listening_changed;	/* LISTEN, UNLISTEN or DISCARD ALL */
	bool		slots_changed;	/* a replication slot created or dropped */
	bool		objects_made;	/* a committed transaction has made objects
								 * and not dropped all of them again */
	bool		objects_dropped;	/* one has dropped others */
	bool		temporary_used; /* a committed transaction touched the
								 * temporary namespace */

	/* what was looked up, valid while no event has been noted since */
	bool		listening;
	bool		has_temporary_slot;
	bool		has_temporary_objects;

	unsigned long long loads_before;	/* libraries that had been loaded
										 * before the first LOAD that was
										 * tried */
} BatonPlacedTies;

/* Counters of pgstat.c that have not been reported (views.c). */
typedef struct BatonPlacedStatistics
{
	uint64		session;		/* whose they all are; 0: nobody's, there are
								 * none; none there is: of several */
	int64		reported_at;	/* by us, for a session that came */
	uint64		pause;			/* microseconds until the next time, beyond
								 * the least */
	uint32		looks;			/* since then, among others' counters */
	int			wanted;			/* so many hand-overs report, somebody has
								 * asked */
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

/* The conversation with whoever is in place (boundary.c). */
typedef struct BatonSelfBoundary
{
	void		(*attach) (void);	/* at the first one (attach.c) */
	bool		attached;
	bool		in_boundary;	/* what is sent now is the boundary's own */
	bool		injecting;		/* what runs are messages of ours: the client
								 * must not see the answers */
	bool		ready_sent;		/* a 'Z' was put since the last flush */
	char		ready_status;	/* its status */
	bool		batch_begun;	/* more than CloseComplete was put since the
								 * last 'Z' */
	bool		exits_on_error; /* the session's own, while all errors do */
	size_t		unflushed;		/* bytes put since the last flush, or more */
} BatonSelfBoundary;

/* Descriptors, and what waits for them (client_socket.c). */
typedef struct BatonSelfSockets
{
	int			placeholder;	/* stands there between sessions */
	int			placeholder_peer;	/* kept open: or it would read EOF */
	int			inject_read;	/* injected messages are read from here */
	int			inject_write;
	int			kept_client;	/* the client's socket during an injection */
	bool		occupied;		/* not the placeholder stands there */
	bool		remade;			/* wait sets are made anew for each socket */
	BatonWatcher command_watcher;	/* FeBeWaitSet's; until attach that is
									 * stock's own, which watches */
	BatonWatcher idle_watcher;
	struct WaitEventSet *idle_set;
} BatonSelfSockets;

/* Its memory (handover.c). */
typedef struct BatonSelfMemory
{
	uint64		uses;			/* counts what is used of the caches: what was
								 * used later has the greater number */
	uint64		looked_uses;	/* as it was at the last look */
	int64		looked_ms;
	int64		began_ms;
	Size		first_resident; /* as they were when it attached */
	Size		first_contexts;
	bool		used_since_look;
} BatonSelfMemory;

typedef struct BatonSelfState
{
	/* filled at attach */
	uint32		slot_index;
	BatonBackendSlot *slot;
	BatonPoolSlot *pool;
	int			control;		/* control socket; -1 when the dispatcher is
								 * gone */
	int			queue;			/* the pool's ready queue, read end */
	int			epolls[BATON_SESSION_THREADS_MAX];	/* the dispatcher's, where
													 * sessions are armed */
	int			epoll_count;
	int			client_number;	/* where the client's socket stands */

	uint64		in_hand;		/* a session that was received, and is not yet
								 * in place (handover.c) */
	bool		notes_ties;		/* attached: the hooks of taint_watch.c note
								 * what they see, and nothing otherwise */
	bool		retire_wanted;	/* it ends as soon as nobody needs it (idle.c) */
	bool		serves_roles;	/* it can be any role's (identity.c) */
	bool		is_apart;		/* its pool is one role's */
	uint32		starts;			/* its slot's, as of its start */
	uint64		start_settings; /* a hash of the settings of role and database
								 * that it has from its start alone
								 * (session_start.c) */
	volatile sig_atomic_t holds_cancels;	/* in the boundary, or in messages
											 * of ours: nothing of the
											 * client's runs (identity.c) */
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

/* Do limits count on its being given back as soon as it can be (is_counted)? */
static inline bool
baton_session_is_counted(void)
{
	return unlikely(pg_atomic_read_u32((pg_atomic_uint32 *) &BatonServed.tenant->is_counted) != 0);
}

/*
 * May the session have temporary objects that outlive a transaction?  Not looked
 * up while something else dedicates.
 */
extern bool baton_may_have_temporary_objects(void);

/* ----------------------------------------------------------------
 *		A transaction of ours in a pooled backend.
 * ----------------------------------------------------------------
 */

/*
 * For ordinary snapshots whatever default_transaction_*
 * are: a serializable one that only reads and is deferrable waits for others
 * to end, and a standby has none.
 */
extern void baton_own_transaction_start(void);

#endif							/* BATON_POOLED_STATE_H */
