/*-------------------------------------------------------------------------
 *
 * backend_entry.c
 *		What the server shows of a backend, and whose it is.
 *
 * pgstat_read_current_status (backend_status.c) copies all entries of
 * BackendStatusArray once a transaction, each as it was at one moment
 * (st_changecount).  Whose a copy is must be in the copy.  st_clientaddr is a
 * sockaddr_storage of 128 bytes that is copied whole; an address of any family
 * that a client can have ends before byte 110 (sockaddr_un), and salen says
 * where, so getnameinfo() never reads further.  MyProcPort is allocated with
 * zeroes (ConnCreate, postmaster.c, up to 16; pq_init since 17), so the rest is
 * zero in ordinary backends, and in processes without a client.
 *
 * The address of MyProcPort is copied whole into a new entry: by pgstat_bestart
 * after authentication up to 17, by pgstat_bestart_initial before it in 18.
 *
 * pgstat_bestart (pgstat_bestart_security in 18) has written the entry's TLS before
 * PostgresMain() begins to tell the client anything, and nobody writes it later.
 *
 * The copies by number: pgstat_fetch_stat_local_beentry in 15, where the number
 * is the place in the copy plus 1; in 16 it is the backend's own, counted from
 * 1, and since 17 counted from 0 (pg_stat_get_backend_idset, pgstatfuncs.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/un.h>

#include "access/xact.h"
#include "common/string.h"
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/atomics.h"

#include "backend_entry.h"
#include "sound_timestamp.h"

#define MARK_MAGIC 0x62744F4E

typedef struct EntryMark
{
	uint32		magic;			/* MARK_MAGIC: a pooled backend's */
	int			pid;			/* of its session; 0: none is in place */
} EntryMark;

#define MARK_OFFSET (sizeof(struct sockaddr_storage) - sizeof(EntryMark))

StaticAssertDecl(MARK_OFFSET >= sizeof(struct sockaddr_un),
				 "an address may reach to where the mark is");
StaticAssertDecl(MARK_OFFSET % sizeof(int) == 0, "the mark is not aligned");

#define address_mark(address) \
	((EntryMark *) ((char *) &(address)->addr + MARK_OFFSET))
#define entry_mark(entry) address_mark(&(entry)->st_clientaddr)

static void
set_mark(volatile EntryMark *mark, int pid)
{
	mark->magic = MARK_MAGIC;
	mark->pid = pid;
}

void
baton_entry_begin_as_nobody(SockAddr *address)
{
	set_mark(address_mark(address), 0);
}

/*
 * As pgstat_bestart (backend_status.c) does once in a backend's life: readers
 * look again if st_changecount has changed meanwhile.
 */
void
baton_entry_show(TimestampTz start, const BatonIdentity *identity)
{
	volatile PgBackendStatus *entry = MyBEEntry;
	TimestampTz query_start = identity ? baton_sound_timestamp(identity->query_start_us) : 0;
	TimestampTz state_start = identity ? baton_sound_timestamp(identity->idle_since_us) : 0;

	if (entry == NULL)
		return;
	if (state_start == 0)
		state_start = start;

	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_proc_start_timestamp = start;
	memcpy(unvolatize(SockAddr *, &entry->st_clientaddr), &MyProcPort->raddr,
		   sizeof(SockAddr));
	entry->st_clienthostname[0] = '\0';
	entry->st_activity_raw[0] = '\0';
	entry->st_query_id = UINT64CONST(0);
	entry->st_activity_start_timestamp = query_start;
	entry->st_state_start_timestamp = state_start;
	set_mark(entry_mark(entry), identity ? identity->pid : 0);
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

void
baton_entry_set_role(Oid role)
{
	volatile PgBackendStatus *entry = MyBEEntry;

	if (entry == NULL)
		return;
	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_userid = role;
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

/*
 * One aligned word, which a reader copies whole: the rest of the entry may then
 * be taken to be nobody's, as it is.
 */
void
baton_entry_forget_session(void)
{
	volatile EntryMark *mark = entry_mark(MyBEEntry);

	mark->pid = 0;
}

#ifdef USE_SSL

/* From UTF-8, cut as X509_NAME_to_cstring (be-secure-openssl.c) and its caller do. */
static void
put_text(char *to, const uint8 *text)
{
	const char *from = (const char *) text;
	int			length = pg_encoding_mbcliplen(PG_UTF8, from, strlen(from), NAMEDATALEN - 1);
	char	   *cut = pnstrdup(from, length);

	if (!pg_is_ascii(cut))
	{
		/* a conversion is looked up in the catalogs */
		StartTransactionCommand();
		strlcpy(to, pg_any_to_server(cut, length, PG_UTF8), NAMEDATALEN);
		CommitTransactionCommand();
	}
	else
		strlcpy(to, cut, NAMEDATALEN);
	pfree(cut);
}

#endif

void
baton_entry_set_tls(const BatonTls *tls)
{
#ifdef USE_SSL
	volatile PgBackendStatus *entry = MyBEEntry;
	PgBackendSSLStatus status;

	memset(&status, 0, sizeof(status));
	status.ssl_bits = (int) tls->bits;
	put_text(status.ssl_version, tls->version);
	put_text(status.ssl_cipher, tls->cipher);
	put_text(status.ssl_client_dn, tls->client_dn);
	put_text(status.ssl_client_serial, tls->client_serial);
	put_text(status.ssl_issuer_dn, tls->issuer_dn);

	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_ssl = true;
	*entry->st_sslstatus = status;
	PGSTAT_END_WRITE_ACTIVITY(entry);
#endif
}

bool
baton_entry_session(const PgBackendStatus *entry, int *pid)
{
	const EntryMark *mark = entry_mark(entry);

	if (mark->magic != MARK_MAGIC)
		return false;
	*pid = mark->pid;
	return true;
}

LocalPgBackendStatus *
baton_entry_local(int n)
{
#if PG_VERSION_NUM >= 160000
	return pgstat_get_local_beentry_by_index(n + 1);
#else
	return pgstat_fetch_stat_local_beentry(n + 1);
#endif
}

int
baton_entry_id(int n)
{
#if PG_VERSION_NUM >= 170000
	return baton_entry_local(n)->proc_number;
#elif PG_VERSION_NUM >= 160000
	return (int) baton_entry_local(n)->backend_id;
#else
	return n + 1;
#endif
}

PgBackendStatus *
baton_entry_by_id(int id)
{
#if PG_VERSION_NUM >= 170000
	return pgstat_get_beentry_by_proc_number(id);
#elif PG_VERSION_NUM >= 160000
	return pgstat_get_beentry_by_backend_id(id);
#else
	return pgstat_fetch_stat_beentry(id);
#endif
}
